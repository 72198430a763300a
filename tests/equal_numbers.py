"""Norms of equal numbers, for both backends: how far a compiled module and eager are from float64.

What rounding leaves of x - mean is divided by the square root of eps. Inputs of all zeros are the
numbers that a bias and an activation make of them.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import kernelwright

# Of numbers of the size of a norm's own weights and biases: their last bits.
ROUNDING = 16 * torch.finfo(torch.float32).eps


class Shifted(nn.Module):
    """A norm over all of some last axes of an activation, which is no zero for zeros."""

    def __init__(self, *shape: int, activation: str = "gelu") -> None:
        super().__init__()
        self.norm = nn.LayerNorm(shape)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(getattr(F, self.activation)(x + 0.7))
        return y


CASES = {
    "down a batch": (nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.BatchNorm1d(48)), (8192, 8)),
    "down an odd batch": (
        nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.BatchNorm1d(48)),
        (4999, 8),
    ),
    "columns of few rows": (
        nn.Sequential(nn.Linear(8, 600), nn.ReLU(), nn.BatchNorm1d(600)),
        (7, 8),
    ),
    "along maps": (
        nn.Sequential(nn.Conv2d(3, 10, 3), nn.MaxPool2d(3, 2), nn.Mish(), nn.InstanceNorm2d(10)),
        (2, 3, 63, 63),
    ),
    "along what vectors leave of many maps": (
        nn.Sequential(nn.Conv1d(3, 10, 1), nn.BatchNorm1d(10)),
        (500, 3, 31),
    ),
    "short rows": (Shifted(49), (700, 49)),
    "rows of two axes": (Shifted(37, 55), (9, 37, 55)),
    "rows": (Shifted(2047), (40, 2047)),
    "groups": (nn.Sequential(nn.Sigmoid(), nn.GroupNorm(6, 6)), (3, 6, 900)),
    # A GELU ends in a product. Where a row is read again, a GPU takes the mean from it unrounded.
    "long rows": (Shifted(100_001, activation="relu"), (3, 100_001)),
}


def errors(name: str, device: str) -> tuple[float, float]:
    """Of the compiled module and of eager, for inputs of all zeros."""
    module, shape = CASES[name]
    torch.manual_seed(0)
    module = copy.deepcopy(module).to(device)
    example = torch.randn(shape, device=device)
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    ours = kernelwright.optimize(copy.deepcopy(module), (example,))
    zeros = torch.zeros_like(example)
    exact = copy.deepcopy(module).double()(zeros.double())

    def error(forward: nn.Module) -> float:
        found: Tensor = forward(zeros)
        return float((found.double() - exact).abs().max())

    with torch.no_grad():
        own, theirs = error(ours), error(module)
    assert not ours.fallbacks
    return own, theirs
