"""Rows that are no multiple of a vector are read in vectors where all of them begin alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from written import Written

from kernelwright.pipeline import compile_problem
from kernelwright.problem import problem_from_module

BATCH, CHANNELS, PLACES = 5, 6, 323
PLANES = (BATCH, CHANNELS, PLACES)


class Pair(Written):
    def forward(self, x: Tensor, y: Tensor) -> Any:  # type: ignore[override]
        return self.function(self, x, y)


def shape_of(forward: Callable[..., Tensor], *shapes: tuple[int, ...]) -> str:
    """The template of a model's only kernel on a GPU."""
    kind = Written if len(shapes) == 1 else Pair
    module = kind(forward, p=torch.nn.Parameter(torch.randn(CHANNELS, 1)))
    inputs = tuple(torch.randn(shape) for shape in shapes)
    (kernel,) = compile_problem(problem_from_module(module, inputs), target="cuda").kernels
    return kernel.config.shape


def test_rows_that_lie_alike() -> None:
    assert shape_of(lambda m, x, y: torch.tanh(x * m.p) + y, PLANES, PLANES) == "ragged"


def test_rows_of_one_sample_for_all() -> None:
    """Six rows of 323 are 1938 elements, two more than a multiple of four."""
    assert shape_of(lambda m, x, y: x * m.p + y, PLANES, (CHANNELS, PLACES)) == "pointwise"


APART: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "one place further on": (lambda m, x, y: x * m.p + y[..., 1:], (BATCH, CHANNELS, PLACES + 1)),
    "longer rows": (lambda m, x, y: x * m.p + y[..., :-1], (BATCH, CHANNELS, PLACES + 1)),
    "each element of a row for itself": (lambda m, x, y: x * m.p + y, (PLACES,)),
}


@pytest.mark.parametrize("name", APART)
def test_rows_that_begin_elsewhere(name: str) -> None:
    forward, shape = APART[name]
    assert shape_of(forward, PLANES, shape) == "pointwise"


def test_short_rows() -> None:
    assert shape_of(lambda m, x: torch.tanh(x * m.p), (BATCH, CHANNELS, 49)) == "pointwise"


def test_even_rows() -> None:
    assert shape_of(lambda m, x: torch.tanh(x * m.p), (BATCH, CHANNELS, 324)) == "pointwise"
