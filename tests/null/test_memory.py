"""Which results of a graph have no element in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from written import Written

from kernelwright.capture import capture
from kernelwright.expand import expand
from kernelwright.memory import apart
from kernelwright.problem import problem_from_module

# Two results of y, (batch, 6, 4), which is computed: whether they have nothing in common.
PAIRS: dict[str, tuple[Callable[[Tensor], tuple[Tensor, Tensor]], bool]] = {
    "halves": (lambda y: (y[:, :3], y[:, 3:]), True),
    "halves, turned": (lambda y: (y[:, :3].mT, y[:, 3:]), True),
    "chunks": (lambda y: tuple(y.chunk(2, 2)), True),
    "every other": (lambda y: (y[:, ::2], y[:, 1::2]), True),
    "places": (lambda y: (y[:, 0], y[:, -1]), True),
    "another value": (lambda y: (y[:, 0], (y * 2)[:, 0]), True),
    "the same place": (lambda y: (y[:, 1], y[:, 1:2]), False),
    "overlapping": (lambda y: (y[:, :4], y[:, 3:]), False),
    "across": (lambda y: (y[:, :3], y[:, :, :2]), False),
    "all of it": (lambda y: (y, y[:, :3]), False),
    "turned": (lambda y: (y.mT, y[:, :3]), False),
    "samples, which may be few": (lambda y: (y[:2], y[-2:]), False),
    "diagonal": (lambda y: (y.diagonal(0, 1, 2), y[:, :3]), False),
}


@pytest.mark.parametrize("name", PAIRS)
def test_apart(name: str) -> None:
    results, disjoint = PAIRS[name]

    def forward(module: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return results(x.tanh() + x)

    graph = expand(capture(problem_from_module(Written(forward), (torch.randn(5, 6, 4),))))
    one, other = (ref.name for ref in graph.outputs)
    assert apart(graph, one, other) is disjoint
    assert apart(graph, other, one) is disjoint
    assert not apart(graph, one, one)
