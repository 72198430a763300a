"""Pointwise work on a volume."""

import torch
import torch.nn.functional as F
from torch import nn

VARIANTS = {
    "full": dict(batch=16, channels=8, filters=32, kernel=3, depth=32, side=48),
    "small": dict(batch=2, channels=3, filters=4, kernel=3, depth=6, side=7),
}
CHOSEN = "full"
sizes = VARIANTS[CHOSEN]


class Model(nn.Module):
    def __init__(self, channels, filters, kernel):
        super().__init__()
        self.conv = nn.Conv3d(channels, filters, kernel, padding=1)
        self.scale = nn.Parameter(torch.randn(filters, 1, 1, 1))
        self.bias = nn.Parameter(torch.randn(filters, 1, 1, 1))

    def forward(self, x):
        return F.gelu(self.conv(x)) * self.scale + self.bias


def get_inputs():
    return [
        torch.randn(sizes["batch"], sizes["channels"], sizes["depth"], sizes["side"], sizes["side"])
    ]


def get_init_inputs():
    return [sizes[name] for name in ("channels", "filters", "kernel")]
