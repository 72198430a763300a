"""Blocks that are turned between two orders of memory: where, and of which size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from kernelwright.lower import Kernel
from kernelwright.pipeline import compile_problem
from kernelwright.problem import problem_from_module

Tensor = torch.Tensor


class Written(nn.Module):
    def __init__(self, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.written = forward

    def forward(self, *x: Tensor) -> Any:
        return self.written(*x)


def kernels(
    forward: Callable[..., Any], *inputs: Tensor, target: str = "sm_90"
) -> tuple[Kernel, ...]:
    problem = problem_from_module(Written(forward), inputs)
    return compile_problem(problem, target=target).kernels


def turned(x: Tensor) -> Tensor:
    return x.relu().permute(0, 2, 3, 1).contiguous()


@pytest.mark.parametrize(
    ("shape", "across", "down", "warp"),
    [
        ((2, 64, 14, 14), 4, 4, 4),
        ((2, 3, 32, 32), 3, 4, 1),  # whole pixels: one run of memory
        ((2, 6, 7, 8), 6, 4, 1),
        ((2, 13, 31, 33), 1, 1, 8),
        ((2, 64, 5, 10), 2, 4, 8),
    ],
)
def test_blocks_divide_both_runs(shape: tuple[int, ...], across: int, down: int, warp: int) -> None:
    (kernel,) = kernels(turned, torch.randn(shape))
    assert kernel.config.shape == "turned"
    found = dict(kernel.config.constants)
    assert (found["kAcross"], found["kDown"], found["kWarpAcross"]) == (across, down, warp)
    assert kernel.program.count(kernel.program.inner) == min(shape[1], shape[2] * shape[3])


def test_several_operands_in_either_order() -> None:
    def forward(x: Tensor, y: Tensor, bias: Tensor) -> Tensor:
        return (x.permute(0, 3, 1, 2).contiguous() + bias[:, None, None]).relu() * y

    shapes = ((2, 8, 8, 32), (2, 32, 8, 8), (32,))
    (kernel,) = kernels(forward, *map(torch.randn, shapes))
    assert kernel.config.shape == "turned"


@pytest.mark.parametrize(
    "forward",
    [
        lambda x: x.relu(),
        lambda x: x.permute(2, 0, 1, 3).contiguous() * 2,  # neighbours stay neighbours
        lambda x: x.permute(0, 2, 3, 1).softmax(-1),  # rows that are reduced
    ],
    ids=["alike", "outer axes", "reduced"],
)
def test_others_are_not_turned(forward: Callable[..., Any]) -> None:
    found = kernels(forward, torch.randn(2, 8, 12, 16))
    assert all(k.config.shape != "turned" for k in found)


def test_a_free_batch_is_no_stride_of_a_block() -> None:
    (kernel,) = kernels(lambda x: x.t().contiguous() * 2, torch.randn(64, 48))
    assert kernel.config.shape != "turned"


def back(x: Tensor) -> Tensor:
    return x.relu().permute(0, 3, 1, 2).contiguous() * 2


@pytest.mark.parametrize(
    ("forward", "shape", "run", "across"),
    [
        (turned, (2, 64, 14, 14), 196, 64),
        (back, (2, 14, 14, 64), 196, 64),
        (turned, (2, 3, 32, 32), 1024, 3),
        (turned, (2, 40, 5, 3), 40, 15),
    ],
)
def test_lanes_of_a_cpu_lie_along_the_longer_run(
    forward: Callable[..., Any], shape: tuple[int, ...], run: int, across: int
) -> None:
    """Whether that is the one of what is read or of what is written."""
    (kernel,) = kernels(forward, torch.randn(shape), target="cpu")
    assert kernel.config.shape == "tiled"
    found = dict(kernel.config.constants)
    assert (found["kRun"], found["kAcross"], found["kVec"]) == (run, across, 16)
