"""Convolutions in slices of the batch, with the kernels after them: the same values as eager's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import checking
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from written import Written, planned

from kernelwright.emit import steps
from kernelwright.lower import slices
from kernelwright.pipeline import compile_problem
from kernelwright.problem import problem_from_module
from kernelwright.targets import CPU, target_for

Forward = Callable[[Any, Tensor], Any]
CONV = {"conv": lambda: nn.Conv2d(3, 6, 3, padding=1)}


def normed(m: nn.Module, x: Tensor) -> Tensor:
    return F.max_pool2d(m.norm(m.conv(x)) * 2, 3, 2).clamp(0, 1)


def residual(m: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    y = m.conv(x) + torch.cat([x, x], 1)
    return torch.relu(y), y.mean((2, 3))


def softened(m: nn.Module, x: Tensor) -> Tensor:
    return F.max_pool3d(torch.softmax(m.conv(x[:, :, None]), 1), (1, 2, 2))


def returned(m: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """It lies in channels_last, and a kernel stores it as eager's."""
    y = m.conv(x)
    return y, y.exp()


def then_linear(m: nn.Module, x: Tensor) -> Tensor:
    return torch.tanh(m.linear(torch.relu(m.conv(x)).mean((2, 3))))


TARGETS = ("cpu", "x86_64")
# The kernels in turns with the convolution, for each target. In three dimensions the first one has
# the channels first, and what the library reads there is a view.
CASES: dict[str, tuple[Forward, dict[str, Callable[[], nn.Module]], tuple[int, int]]] = {
    "several kernels": (normed, {**CONV, "norm": lambda: nn.GroupNorm(2, 6)}, (3, 2)),
    "other operands": (residual, CONV, (2, 2)),
    "returned": (returned, {"conv": lambda: nn.Conv2d(3, 6, 3, bias=False)}, (2, 2)),
    "transposed": (softened, {"conv": lambda: nn.ConvTranspose3d(3, 4, 3, stride=2)}, (0, 3)),
    "what follows": (then_linear, {**CONV, "linear": lambda: nn.Linear(6, 5)}, (1, 1)),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CASES)
def test_slices_give_what_eager_gives(
    case: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, parts, counts = CASES[case]
    count = counts[TARGETS.index(target)]
    monkeypatch.setattr(steps, "LARGE_BYTES", 0)
    monkeypatch.setattr(slices, "SLICE_BYTES", 1)
    monkeypatch.setattr(slices, "WEIGHTS", 0)
    module = Written(forward, **{name: make() for name, make in parts.items()}).eval()
    problem = problem_from_module(module, (torch.randn(4, 3, 9, 8),))
    library = replace(target_for(target), small=None)
    compiled = compile_problem(problem, target=library)
    assert [len(s.kernels) for s in compiled.lowered.slices] == ([count] if count else [])
    fused = compiled.instantiate()
    for batch in (1, 2, 5, 0):
        x = torch.randn(batch, 3, 9, 8)
        with torch.no_grad():
            torch.testing.assert_close(fused(x), module(x))
    assert not fused.fallbacks


def mixed(m: nn.Module, x: Tensor) -> Tensor:
    return m.conv(x).mean(0)


def mixed_besides(m: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    y = m.conv(x)
    return torch.relu(y), y.sum((0, 2, 3))


@pytest.mark.parametrize("forward", [mixed, mixed_besides])
def test_what_is_needed_as_a_whole_is_not_sliced(forward: Forward) -> None:
    conv = nn.Conv2d(3, 6, 3, bias=False)
    assert not planned(forward, 4, 3, 9, 8, target="cpu", conv=conv).lowered.slices


# What a kernel does with a sample, told by which it is of all samples, or by how many there are.
OF_ALL: dict[str, Callable[[Tensor], Any]] = {
    "the first": lambda x: x[:1],
    "the last": lambda x: x[-1:],
    "which": lambda x: torch.arange(x.shape[0]).reshape(-1, *[1] * (x.ndim - 1)),
    "how many": lambda x: x.shape[0],
}


@pytest.mark.parametrize("of_all", OF_ALL)
@pytest.mark.parametrize("product", ["convolution", "matrix"])
def test_parts_of_the_batch_do_not_know_the_whole(product: str, of_all: str) -> None:
    """A slice, or a panel of rows, is handed to the kernel as if it were all that there is."""
    parts: dict[str, nn.Module]
    if product == "convolution":
        shape, parts = (48, 16, 64, 64), {"by": nn.Conv2d(16, 16, 3, padding=1)}
    else:
        shape, parts = (9000, 256), {"by": nn.Linear(256, 256)}
    module = Written(lambda m, x: torch.relu(m.by(x)) * OF_ALL[of_all](x), **parts).eval()
    x = torch.randn(*shape)
    fused = compile_problem(problem_from_module(module, (x,))).instantiate()
    with torch.no_grad():
        ours, theirs = fused(x), module(x)
        exact = copy.deepcopy(module).double()(x.double())
    checking.check_close("parts", ours, theirs, exact)
    assert not fused.fallbacks


def test_a_generated_way_has_no_slices() -> None:
    compiled = planned(lambda m, x: m.conv(x).relu(), 4, 3, 9, 8, conv=nn.Conv2d(3, 6, 3))
    assert not compiled.lowered.slices


@pytest.mark.parametrize(
    ("conv", "side", "fewest"),
    [
        (nn.Conv3d(4, 6, 3), 9, 2),
        (nn.Conv3d(4, 6, 5), 9, 1),  # a large window
        (nn.Conv3d(4, 6, 3, groups=2), 9, 1),
        (nn.Conv3d(40, 6, 3), 24, 1),  # more numbers in its first three axes
    ],
    ids=str,
)
def test_no_slice_of_one_small_sample(
    conv: nn.Conv3d, side: int, fewest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the library would unfold it."""
    monkeypatch.setattr(slices, "PAIR_BYTES", 0)
    monkeypatch.setattr(steps, "LARGE_BYTES", 0)
    monkeypatch.setattr(slices, "SLICE_BYTES", 1)
    monkeypatch.setattr(slices, "WEIGHTS", 0)
    module = Written(lambda m, x: m.conv(x).relu() * 2, conv=conv)
    x = torch.randn(7, conv.in_channels, side, side, side)
    compiled = compile_problem(problem_from_module(module, (x,)), target="x86_64")
    assert [s.fewest for s in compiled.lowered.slices] == [fewest]
    assert [s.fewest for s in slices.slices(compiled.planned, CPU)] == [1]
    assert ("max(1, batch // 2)" in compiled.source) == (fewest == 2)
    fused = compiled.instantiate()
    for batch in (7, 1):
        with torch.no_grad():
            torch.testing.assert_close(fused(x[:batch]), module(x[:batch]))
    assert not fused.fallbacks
