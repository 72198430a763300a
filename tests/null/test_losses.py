"""Losses that make one number of everything: in one or two kernels, and right in float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from program_interpreter import run_plan
from torch import Tensor, nn

from kernelwright import spec
from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.problem import problem_from_module

Loss = Callable[..., Tensor]


class Lossy(nn.Module):
    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.loss(*inputs)


def compiled(loss: Loss, inputs: tuple[Tensor, ...], target: str = "cuda") -> Compiled:
    found = compile_problem(problem_from_module(Lossy(loss), inputs), target=target)
    spec.check_graph(found.primitives, "expand")
    return found


def check(loss: Loss, inputs: tuple[Tensor, ...]) -> Compiled:
    """The plan, run in float64, gives what the loss gives."""
    found = compiled(loss, tuple(x.float() if x.is_floating_point() else x for x in inputs))
    wide = tuple(x.double() if x.is_floating_point() else x for x in inputs)
    got = run_plan(found.planned, Lossy(loss), wide, block_n=64)
    torch.testing.assert_close(got, loss(*wide), rtol=1e-9, atol=1e-9, equal_nan=True)
    return found


def classes(count: int, *shape: int) -> Tensor:
    return torch.randint(0, count, shape)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("shape", [(12, 10), (5, 7, 4, 6), (9,)])
def test_cross_entropy(reduction: str, smoothing: float, shape: tuple[int, ...]) -> None:
    count = shape[min(1, len(shape) - 1)]
    target = classes(count, *(shape[:1] + shape[2:] if len(shape) > 1 else ()))
    if target.ndim:
        target.view(-1)[::3] = 2
    loss = partial(F.cross_entropy, reduction=reduction, label_smoothing=smoothing, ignore_index=2)
    found = check(loss, (torch.randn(shape) * 3, target))
    assert len(found.kernels) <= 2
    kinds = {region.kind for region in found.planned.regions}
    assert kinds == {"rowwise"} or (reduction == "none" and len(shape) > 1)


def test_cross_entropy_of_nothing_but_ignored_rows_is_nan() -> None:
    loss = partial(F.cross_entropy, ignore_index=1)
    check(loss, (torch.randn(4, 3), torch.ones(4, dtype=torch.long)))


def test_a_number_that_is_no_class_gives_nan() -> None:
    target = torch.tensor([0, 1, 2, 0])
    found = compiled(F.cross_entropy, (torch.randn(4, 3), target))
    for wrong in (3, -1):
        target[1] = wrong
        inputs = (torch.randn(4, 3).double(), target)
        assert run_plan(found.planned, Lossy(F.cross_entropy), inputs, block_n=64).isnan()


def test_cross_entropy_with_weights_or_probabilities_stays_with_aten() -> None:
    weighted = partial(F.cross_entropy, weight=torch.rand(3))
    for loss, target in ((weighted, classes(3, 4)), (F.cross_entropy, torch.rand(4, 3))):
        regions = compiled(loss, (torch.randn(4, 3), target)).planned.regions
        assert any(region.kind == "opaque" for region in regions)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("swap", [False, True])
def test_triplets(reduction: str, order: int, swap: bool) -> None:
    loss = partial(F.triplet_margin_loss, reduction=reduction, p=order, swap=swap, margin=0.7)
    found = check(loss, tuple(torch.randn(12, 10) for _ in range(3)))
    assert len(found.kernels) <= (1 if reduction == "none" else 2)


def test_triplets_at_other_powers_stay_with_aten() -> None:
    loss = partial(F.triplet_margin_loss, p=3.0)
    regions = compiled(loss, tuple(torch.randn(12, 10) for _ in range(3))).planned.regions
    assert [region.kind for region in regions] == ["opaque"]


@pytest.mark.parametrize(
    "loss", [F.huber_loss, F.mse_loss, F.l1_loss, F.smooth_l1_loss], ids=lambda f: f.__name__
)
def test_elementwise_losses(loss: Loss) -> None:
    found = check(loss, (torch.randn(12, 10), torch.randn(12, 10)))
    assert len(found.kernels) == 2


def test_two_losses_are_finished_by_one_kernel() -> None:
    def both(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return F.mse_loss(x, y) + F.l1_loss(x, z)

    found = check(both, tuple(torch.randn(12, 10) for _ in range(3)))
    assert len(found.kernels) == 2
