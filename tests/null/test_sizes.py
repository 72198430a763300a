"""Sizes that are free in a call, and those that the products of a model are compiled for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from written import Written

from kernelwright.capture import HELD
from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.problem import problem_from_module

SIDE = 2048


class Pair(nn.Module):
    """A forward of two tensors."""

    def __init__(self, forward: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.of_both = forward

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.of_both(x, y)


def compiled(module: nn.Module, *shapes: tuple[int, ...], target: str = "cuda") -> Compiled:
    inputs = tuple(torch.zeros(shape) for shape in shapes)
    return compile_problem(problem_from_module(module, inputs), target=target)


def kinds(made: Compiled) -> list[str]:
    return [region.kind for region in made.planned.regions]


def test_as_many_columns_as_another_input_has_rows() -> None:
    """The rows of the result stay free."""
    made = compiled(Pair(lambda x, y: torch.relu(x @ y.mT)), (SIDE, 512), (SIDE, 512))
    assert kinds(made) == ["gemm"]
    (symbol,) = made.captured.symbols
    assert [str(d) for d in made.captured["x"].type.shape] == [symbol, "512"]
    assert made.captured["y"].type.shape == (SIDE, 512)


def test_as_deep_as_the_batch() -> None:
    made = compiled(Pair(lambda x, y: x.mT @ y), (SIDE, 1024), (SIDE, 512))
    assert kinds(made) == ["gemm"]
    assert made.captured.contract.fixed == HELD


def test_a_product_that_is_a_small_part_leaves_the_batch_free() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        z = m.last(torch.relu(m.first(x)))
        return z @ z.mT

    parts = {"first": nn.Linear(1024, 4096), "last": nn.Linear(4096, 64)}
    made = compiled(Written(forward, **parts), (256, 1024))
    assert made.captured.contract.fixed is None and len(made.captured.symbols) == 1
    assert "gemm" in kinds(made) and kinds(made)[-1] == "contract"


def test_on_a_cpu_nothing_is_held() -> None:
    made = compiled(Pair(lambda x, y: x @ y.mT), (SIDE, 64), (SIDE, 64), target="cpu")
    assert len(made.captured.symbols) == 2
