"""One number a row, and the input added to it."""

import torch
from torch import nn

VARIANTS = {
    "full": dict(batch=2048, features=8192, units=8192),
    "small": dict(batch=5, features=24, units=16),
}
CHOSEN = "full"
sizes = VARIANTS[CHOSEN]


class Model(nn.Module):
    def __init__(self, features, units):
        super().__init__()
        self.linear = nn.Linear(features, units)
        self.shift = nn.Parameter(torch.randn(units))

    def forward(self, x):
        y = (self.linear(x) - self.shift).mean(dim=1, keepdim=True)
        return torch.sigmoid(y) + x


def get_inputs():
    return [torch.rand(sizes["batch"], sizes["features"])]


def get_init_inputs():
    return [sizes[name] for name in ("features", "units")]
