"""Twice the side, GELU, then a norm over groups."""

import torch
import torch.nn.functional as F
from torch import nn

VARIANTS = {
    "full": dict(batch=64, channels=32, filters=48, kernel=4, groups=8, side=72),
    "small": dict(batch=3, channels=3, filters=8, kernel=4, groups=2, side=6),
}
CHOSEN = "full"
sizes = VARIANTS[CHOSEN]


class Model(nn.Module):
    def __init__(self, channels, filters, kernel, groups):
        super().__init__()
        self.conv = nn.ConvTranspose2d(channels, filters, kernel, stride=2, padding=1)
        self.norm = nn.GroupNorm(groups, filters)

    def forward(self, x):
        return self.norm(F.gelu(self.conv(x)))


def get_inputs():
    return [torch.randn(sizes["batch"], sizes["channels"], sizes["side"], sizes["side"])]


def get_init_inputs():
    return [sizes[name] for name in ("channels", "filters", "kernel", "groups")]
