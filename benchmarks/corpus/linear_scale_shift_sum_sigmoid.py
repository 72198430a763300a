"""A factor and a shift for each output before their sum."""

import torch
from torch import nn

VARIANTS = {
    "full": dict(batch=4096, features=4096, units=8192),
    "small": dict(batch=5, features=24, units=16),
}
CHOSEN = "full"
sizes = VARIANTS[CHOSEN]


class Model(nn.Module):
    def __init__(self, features, units):
        super().__init__()
        self.linear = nn.Linear(features, units)
        self.scale = nn.Parameter(torch.randn(units))
        self.shift = nn.Parameter(torch.randn(units))

    def forward(self, x):
        return torch.sigmoid((self.linear(x) * self.scale + self.shift).sum(dim=1))


def get_inputs():
    return [torch.randn(sizes["batch"], sizes["features"])]


def get_init_inputs():
    return [sizes[name] for name in ("features", "units")]
