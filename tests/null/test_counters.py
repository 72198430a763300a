"""Buffers that are counted up in place, and those that only look like it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kernelwright.capture import capture
from kernelwright.counters import counted
from kernelwright.graph import Graph
from kernelwright.interpret import run
from kernelwright.ledger import COUNTED_BY_KERNEL
from kernelwright.pipeline import compile_problem
from kernelwright.problem import problem_from_module


class Counts(nn.Module):
    """`count` says what a call does with the buffer; what that returns is added to the result."""

    def __init__(self, count: Callable[[Any], Any], dtype: torch.dtype = torch.int64) -> None:
        super().__init__()
        self.count = count
        self.register_buffer("calls", torch.zeros((), dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        said = self.count(self)
        return torch.tanh(x) if said is None else torch.tanh(x) + said


def up(module: Any) -> None:
    module.calls.add_(3)


def read_afterwards(module: Any) -> Tensor:
    module.calls.add_(1)
    return module.calls


def read_before(module: Any) -> Tensor:
    before = module.calls * 1.0
    module.calls.add_(1)
    return before


def twice(module: Any) -> None:
    module.calls.add_(1)
    module.calls.add_(1)


def doubled(module: Any) -> None:
    module.calls.add_(module.calls)


def graphs(module: nn.Module) -> tuple[Graph, Graph]:
    captured = capture(problem_from_module(module, (torch.rand(4, 6),)))
    return captured, counted(captured)


def test_a_counter_is_no_operator_and_no_result() -> None:
    module, x = Counts(up), torch.rand(4, 6)
    before, after = graphs(module)
    assert [(c.buffer, c.by) for c in after.counters] == [("calls", 3)]
    assert not after.mutations and len(after.results) == 1
    assert len(after.nodes) == len(before.nodes) - 1
    assert str(after).splitlines()[-2] == "calls += 3"
    _, written = run(after, module, (x,))
    assert written["calls"] == 3 and module.calls == 0


@pytest.mark.parametrize("count", [read_afterwards, read_before, twice, doubled])
def test_what_is_read_or_is_no_sum_with_a_number_stays(count: Callable[[Any], Any]) -> None:
    before, after = graphs(Counts(count))
    assert before.mutations and after is before


def test_a_floating_counter_stays() -> None:
    """Where it would stop counting is for the operator to say."""
    before, after = graphs(Counts(up, torch.float32))
    assert before.mutations and after is before


def test_the_kernels_of_a_network_count() -> None:
    layers = [m for _ in range(3) for m in (nn.Linear(8, 8), nn.BatchNorm1d(8))]
    compiled = compile_problem(problem_from_module(nn.Sequential(*layers), (torch.rand(4, 8),)))
    assert len(compiled.planned.graph.counters) == len(compiled.lowered.in_place.counted) == 3
    assert [r.fate for r in compiled.ledger if r.why == COUNTED_BY_KERNEL] == ["fused"] * 3
    assert "_foreach_add_" not in compiled.source
    assert not any(region.kind == "opaque" for region in compiled.planned.regions)
    # Each with a counter of its own, so they are one kernel.
    assert len(compiled.kernels) == 1


def test_what_no_kernel_counts_is_counted_with_one_call() -> None:
    compiled = compile_problem(problem_from_module(Counts(up), (torch.rand(4, 6),)))
    assert [r.op for r in compiled.ledger if r.where == "_foreach_add_"] == ["add"]
    assert "torch._foreach_add_([calls], 3)" in compiled.source
