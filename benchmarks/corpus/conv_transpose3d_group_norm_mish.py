"""A norm over groups of channels of an enlarged volume."""

import torch
import torch.nn.functional as F
from torch import nn

VARIANTS = {
    "full": dict(batch=32, channels=8, filters=16, kernel=3, groups=4, depth=16, side=32),
    "small": dict(batch=2, channels=3, filters=4, kernel=3, groups=2, depth=3, side=4),
}
CHOSEN = "full"
sizes = VARIANTS[CHOSEN]


class Model(nn.Module):
    def __init__(self, channels, filters, kernel, groups):
        super().__init__()
        self.conv = nn.ConvTranspose3d(channels, filters, kernel, stride=2, padding=1)
        self.norm = nn.GroupNorm(groups, filters)

    def forward(self, x):
        return F.mish(self.norm(self.conv(x)))


def get_inputs():
    return [
        torch.randn(sizes["batch"], sizes["channels"], sizes["depth"], sizes["side"], sizes["side"])
    ]


def get_init_inputs():
    return [sizes[name] for name in ("channels", "filters", "kernel", "groups")]
