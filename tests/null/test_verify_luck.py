"""No verdict hangs on the luck of one run of eager's, and none lets a mistake through."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from kernelwright.verify.cases import Case
from kernelwright.verify.compare import measure
from kernelwright.verify.inputs import Inputs
from kernelwright.verify.judge import judge
from kernelwright.verify.sides import Local

TERMS = 600


class Summed(nn.Module):
    """One rounding for each term, in this order."""

    def __init__(self, order: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.order = order

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros_like(x[:, 0])
        for term in self.order(x).unbind(1):
            total = total + term
        return total


def lucky_for_eager(seed: int) -> Tensor:
    """A row on which eager's sum is far more exact than it is on others."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(2000, TERMS, generator=generator)
    forward, backward = (Summed(f)(rows).double() for f in (lambda x: x, lambda x: x.flip(1)))
    exact = rows.double().sum(1)
    error, other = (forward - exact).abs(), (backward - exact).abs()
    return rows[int((other / (error + 4 * 1.2e-7 * exact.abs() + 1e-7)).argmax())]


@pytest.mark.parametrize("seed", range(4))
def test_a_row_on_which_eager_is_exact_by_luck_fails_nobody(seed: int) -> None:
    row = lucky_for_eager(seed)[None]
    sides = Local(Summed(lambda x: x), Summed(lambda x: x.flip(1)), torch.device("cpu"))
    found = judge(sides, Case("one row", lambda draw: Inputs((row.clone(),), {})))
    assert found.passed, found.detail


def test_less_precision_fails_on_that_row() -> None:
    row = lucky_for_eager(0)[None]
    sides = Local(Summed(lambda x: x), Summed(lambda x: x.bfloat16().float()), torch.device("cpu"))
    found = judge(sides, Case("one row", lambda draw: Inputs((row.clone(),), {})))
    assert found.passed is False


def drawn(columns: dict[int, float], draw: int) -> list[Tensor]:
    """Candidate, eager and float64, with errors of so many times eager's in some columns."""
    torch.manual_seed(draw)
    exact = torch.randn(9, 300, dtype=torch.float64)
    ours, eager = (exact + 1e-5 * torch.randn(9, 300) for _ in range(2))
    for column, times in columns.items():
        ours[3, column] = exact[3, column] + times * 1e-5
    return [ours.float(), eager.float(), exact]


def test_a_slice_is_wrong_if_it_is_in_every_draw() -> None:
    def ratio(*draws: dict[int, float]) -> float:
        pooled = [measure(*drawn(x, i), by_group=True) for i, x in enumerate(draws)]
        total = pooled[0]
        for figures in pooled[1:]:
            total = total + figures
        assert total.worst_group is not None
        return total.worst_group.ratio

    assert ratio({}) < 1
    assert ratio({7: 30.0}) > 1
    assert ratio({7: 30.0}, {11: 30.0}, {}) < 1, "luck goes from slice to slice"
    assert ratio({7: 30.0}, {7: 40.0}, {7: 30.0}) > 1, "a mistake stays"


def test_a_slice_of_zeros_may_be_what_float64_rounded_off() -> None:
    """GELU as 0.5 x (1 + erf(x / sqrt 2)) is -0 from -9 on in float64; Phi is 1e-19 there."""
    exact = torch.randn(9, 30, dtype=torch.float64)
    exact[:, 4] = 0
    eager = exact.float()
    ours = eager.clone()
    ours[:, 4] = -1e-18
    better = measure(ours, eager, exact, by_group=True).worst_group
    assert better is not None and better.ratio <= 1
    ours[:, 4] = -1e-12
    wrong = measure(ours, eager, exact, by_group=True).worst_group
    assert wrong is not None and wrong.ratio > 1 and (1, 4) in wrong.places
