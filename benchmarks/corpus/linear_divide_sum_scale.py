"""A sum over outputs: reading the weight once is all that is owed."""

import torch
from torch import nn

VARIANTS = {
    "full": dict(batch=1024, features=8192, units=8192, scale=1.5),
    "small": dict(batch=5, features=24, units=16, scale=1.5),
}
CHOSEN = "full"
sizes = VARIANTS[CHOSEN]


class Model(nn.Module):
    def __init__(self, features, units, scale):
        super().__init__()
        self.linear = nn.Linear(features, units, bias=False)
        self.scale = scale

    def forward(self, x):
        return torch.sum(self.linear(x) / 2, dim=1, keepdim=True) * self.scale


def get_inputs():
    return [torch.rand(sizes["batch"], sizes["features"])]


def get_init_inputs():
    return [sizes[name] for name in ("features", "units", "scale")]
