"""Statistics over groups of channels and all pixels, before a pool."""

import torch
from torch import nn

VARIANTS = {
    "full": dict(batch=128, channels=8, filters=64, kernel=3, groups=16, window=4, side=128),
    "small": dict(batch=3, channels=3, filters=8, kernel=3, groups=2, window=4, side=14),
}
CHOSEN = "full"
sizes = VARIANTS[CHOSEN]


class Model(nn.Module):
    def __init__(self, channels, filters, kernel, groups, window):
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, kernel)
        self.norm = nn.GroupNorm(groups, filters)
        self.scale = nn.Parameter(torch.randn(filters, 1, 1))
        self.pool = nn.MaxPool2d(window)

    def forward(self, x):
        x = self.norm(self.conv(x)) * self.scale
        return torch.clamp(self.pool(x), -0.5, 1.5)


def get_inputs():
    return [torch.randn(sizes["batch"], sizes["channels"], sizes["side"], sizes["side"])]


def get_init_inputs():
    return [sizes[name] for name in ("channels", "filters", "kernel", "groups", "window")]
