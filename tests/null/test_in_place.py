"""New values of buffers that kernels store in the buffers, and those that have to be copied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from checking import fused
from torch import Tensor, nn

from kernelwright.graph import refs
from kernelwright.lower.steps import Alloc, Launch
from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.plan import ALWAYS
from kernelwright.problem import problem_from_module


class Keeps(nn.Module):
    """`written` is given the module, with its buffers `kept` and `other`, and an input."""

    def __init__(self, written: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.written = written
        self.register_buffer("kept", torch.rand(32))
        self.register_buffer("other", torch.rand(32))

    def forward(self, x: Tensor) -> Tensor:
        return self.written(self, x)


def compiled(module: nn.Module, x: Tensor, target: str = "cpu") -> Compiled:
    return compile_problem(problem_from_module(module, (x,)), target=target, policy=ALWAYS)


def stored(written: Callable[[Any, Tensor], Tensor], target: str = "cpu") -> set[str]:
    """The buffers that kernels write."""
    found = compiled(Keeps(written), torch.rand(64, 32), target).lowered.in_place
    return set(found.buffers)


# ---- what is stored in place -----------------------------------------------------------------


def average(m: Any, x: Tensor) -> Tensor:
    mean = x.mean(0)
    m.kept.mul_(0.9).add_(mean * 0.1)
    return x - mean


def overwritten(m: Any, x: Tensor) -> Tensor:
    m.kept.copy_(x.sum(0))
    return torch.tanh(x)


def elementwise(m: Any, x: Tensor) -> Tensor:
    m.kept.copy_(torch.sin(m.kept) * 2)
    return torch.tanh(x)


def both(m: Any, x: Tensor) -> Tensor:
    m.kept.copy_(m.kept + x.sum(0))
    m.other.copy_(m.other * x.amax(0))
    return torch.tanh(x)


def earlier_reader(m: Any, x: Tensor) -> Tensor:
    y = torch.softmax(x + m.kept, 1)
    m.kept.copy_(m.kept * 0.5 + y.sort(0)[0].sum(0))
    return y


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("written", "buffers"),
    [
        (average, {"kept"}),
        (overwritten, {"kept"}),
        (elementwise, {"kept"}),
        (both, {"kept", "other"}),
        (earlier_reader, {"kept"}),
    ],
)
def test_the_kernel_stores(
    written: Callable[[Any, Tensor], Tensor], buffers: set[str], target: str
) -> None:
    made = compiled(Keeps(written), torch.rand(64, 32), target)
    assert set(made.lowered.in_place.buffers) == buffers
    assert "copy_" not in fused(made)
    new = {value for _, value in made.planned.graph.mutations}
    returned = set(refs(made.planned.graph.outputs))
    allocated = {s.buffer.name for s in made.lowered.steps if isinstance(s, Alloc)}
    assert not allocated & (new - returned)
    assert buffers <= {w for s in made.lowered.steps if isinstance(s, Launch) for w in s.writes}


# ---- what is not -----------------------------------------------------------------------------


def read_later(m: Any, x: Tensor) -> Tensor:
    old = m.kept.clone()
    m.kept.copy_(x.sum(0))
    return torch.tanh(x).sort(0)[0] * old


def read_by_others(m: Any, x: Tensor) -> Tensor:
    """In the same kernel, but in every element of the row."""
    mean = x.mean(0)
    y = torch.sigmoid(x - mean + m.kept)
    m.kept.copy_(m.kept * 0.9 + mean)
    return y


def from_elsewhere(m: Any, x: Tensor) -> Tensor:
    m.kept.copy_(torch.cat([m.kept[1:], m.kept[:1]]) * 2)
    return torch.tanh(x)


def swapped(m: Any, x: Tensor) -> Tensor:
    old = m.kept.clone()
    m.kept.copy_(m.other)
    m.other.copy_(old)
    return torch.tanh(x)


def handed_on(m: Any, x: Tensor) -> Tensor:
    """What one gets is what the other was."""
    m.other.copy_(m.kept)
    m.kept.copy_(x.sum(0))
    return torch.tanh(x)


def returned(m: Any, x: Tensor) -> Tensor:
    m.kept.copy_(m.kept + x.sum(0))
    return m.kept * 1.0


def by_the_library(m: Any, x: Tensor) -> Tensor:
    m.kept.copy_(x.sort(0)[0][0])
    return torch.tanh(x)


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize(
    "written",
    [read_later, read_by_others, from_elsewhere, swapped, handed_on, by_the_library],
)
def test_a_copy_at_the_end(written: Callable[[Any, Tensor], Tensor], target: str) -> None:
    made = compiled(Keeps(written), torch.rand(64, 32), target)
    assert "kept" not in made.lowered.in_place.buffers
    assert "copy_" in fused(made)


def test_a_returned_value_is_no_buffer() -> None:
    assert stored(returned) == set()


def test_rows_that_are_taken_twice_are_not_updated() -> None:
    """24 rows in vectors of 16 lanes: the second vector begins at row 8."""
    uneven = nn.Sequential(nn.Linear(8, 24), nn.BatchNorm1d(24))
    even = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32))
    assert compiled(uneven, torch.rand(64, 8)).lowered.in_place.buffers == ()
    assert len(compiled(even, torch.rand(64, 8)).lowered.in_place.buffers) == 3
    assert len(compiled(uneven, torch.rand(64, 8), "cuda").lowered.in_place.buffers) == 3


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_a_batch_norm_leaves_nothing_to_copy(target: str) -> None:
    norm = nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU())
    made = compiled(norm, torch.rand(4, 3, 8, 8), target)
    assert len(made.lowered.in_place.buffers) == 3
    assert "_foreach_" not in made.source and "copy_" not in fused(made)
