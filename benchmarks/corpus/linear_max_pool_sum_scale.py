"""A maximum between the product and the sum: nothing collapses here."""

import torch
from torch import nn

VARIANTS = {
    "full": dict(batch=512, features=8192, units=8192, scale=0.5),
    "small": dict(batch=5, features=24, units=16, scale=0.5),
}
CHOSEN = "full"
sizes = VARIANTS[CHOSEN]


class Model(nn.Module):
    def __init__(self, features, units, scale):
        super().__init__()
        self.linear = nn.Linear(features, units)
        self.pool = nn.MaxPool1d(2)
        self.scale = scale

    def forward(self, x):
        x = self.pool(self.linear(x).unsqueeze(1)).squeeze(1)
        return torch.sum(x, dim=1) * self.scale


def get_inputs():
    return [torch.randn(sizes["batch"], sizes["features"])]


def get_init_inputs():
    return [sizes[name] for name in ("features", "units", "scale")]
