"""A grouped convolution whose groups are also those of the norm."""

import torch
import torch.nn.functional as F
from torch import nn

VARIANTS = {
    "full": dict(batch=64, channels=64, filters=128, kernel=3, groups=8, side=80),
    "small": dict(batch=3, channels=4, filters=8, kernel=3, groups=2, side=11),
}
CHOSEN = "full"
sizes = VARIANTS[CHOSEN]


class Model(nn.Module):
    def __init__(self, channels, filters, kernel, groups):
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, kernel, padding=1, groups=groups)
        self.norm = nn.GroupNorm(groups, filters)

    def forward(self, x):
        return F.silu(self.norm(self.conv(x)))


def get_inputs():
    return [torch.randn(sizes["batch"], sizes["channels"], sizes["side"], sizes["side"])]


def get_init_inputs():
    return [sizes[name] for name in ("channels", "filters", "kernel", "groups")]
