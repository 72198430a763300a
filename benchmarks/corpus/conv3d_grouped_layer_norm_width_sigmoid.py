"""A grouped convolution and LayerNorm over the width."""

import torch
from torch import nn

VARIANTS = {
    "full": dict(batch=16, channels=16, filters=32, kernel=3, groups=4, depth=16, side=48),
    "small": dict(batch=2, channels=4, filters=4, kernel=3, groups=2, depth=6, side=7),
}
CHOSEN = "full"
sizes = VARIANTS[CHOSEN]


class Model(nn.Module):
    def __init__(self, channels, filters, kernel, groups, side):
        super().__init__()
        self.conv = nn.Conv3d(channels, filters, kernel, padding=1, groups=groups)
        self.norm = nn.LayerNorm(side)

    def forward(self, x):
        return torch.sigmoid(self.norm(self.conv(x)))


def get_inputs():
    return [
        torch.randn(sizes["batch"], sizes["channels"], sizes["depth"], sizes["side"], sizes["side"])
    ]


def get_init_inputs():
    return [sizes[name] for name in ("channels", "filters", "kernel", "groups", "side")]
