"""Dropout before a softmax."""

import torch
from torch import nn

VARIANTS = {
    "full": dict(batch=256, features=8192, units=8192),
    "small": dict(batch=5, features=24, units=16),
}
CHOSEN = "full"
sizes = VARIANTS[CHOSEN]
MODES = ("train", "eval")


class Model(nn.Module):
    def __init__(self, features, units):
        super().__init__()
        self.linear = nn.Linear(features, units)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        return torch.softmax(self.drop(self.linear(x)), dim=1)


def get_inputs():
    return [torch.rand(sizes["batch"], sizes["features"])]


def get_init_inputs():
    return [sizes[name] for name in ("features", "units")]
