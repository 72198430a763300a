"""Norms of constant channels: what rounding leaves of x - mean is divided by nearly nothing.

A sum of equal numbers is rounded the same way at every step, so its error grows with the steps. Of
the mean one or two bits may be lost, and no more.
"""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

import kernelwright

# Of numbers below one, over the square root of what a norm adds to the variance.
LOST = 2 * torch.finfo(torch.float32).eps / math.sqrt(1e-5)

CASES = {
    "down the batch": (nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.BatchNorm1d(48)), (8192, 8)),
    "along maps": (nn.Sequential(nn.Conv2d(3, 10, 3), nn.InstanceNorm2d(10)), (2, 3, 60, 60)),
    "along what vectors leave of many maps": (
        nn.Sequential(nn.Conv1d(3, 10, 1), nn.BatchNorm1d(10)),
        (500, 3, 31),
    ),
    "along rows": (nn.Sequential(nn.Conv1d(2, 6, 1), nn.GELU(), nn.GroupNorm(6, 6)), (3, 2, 9001)),
}


@pytest.mark.parametrize("name", CASES)
def test_the_mean_of_equal_numbers_is_that_number(name: str) -> None:
    module, shape = CASES[name]
    torch.manual_seed(0)
    example = torch.randn(shape)
    ours = kernelwright.optimize(copy.deepcopy(module), (example,))
    exact, eager = copy.deepcopy(module).double(), copy.deepcopy(module)

    def error(forward: nn.Module) -> float:
        found: Tensor = forward(torch.zeros(shape))
        return float((found.double() - exact(torch.zeros(shape).double())).abs().max())

    with torch.no_grad():
        own, theirs = error(ours), error(eager)
    assert not ours.fallbacks
    assert own <= 2 * theirs + LOST
