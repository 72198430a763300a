"""A shift that cancels, LayerNorm over the width, a pool past which sigmoid may move."""

import torch
from torch import nn

VARIANTS = {
    "full": dict(batch=16, channels=16, filters=32, kernel=4, depth=16, side=32),
    "small": dict(batch=2, channels=3, filters=4, kernel=4, depth=3, side=4),
}
CHOSEN = "full"
sizes = VARIANTS[CHOSEN]


class Model(nn.Module):
    def __init__(self, channels, filters, kernel, side):
        super().__init__()
        self.conv = nn.ConvTranspose3d(channels, filters, kernel, stride=2, padding=1)
        self.shift = nn.Parameter(torch.randn(()))
        self.norm = nn.LayerNorm(2 * side)
        self.pool = nn.MaxPool3d(2)

    def forward(self, x):
        return self.pool(torch.sigmoid(self.norm(self.conv(x) + self.shift)))


def get_inputs():
    return [
        torch.randn(sizes["batch"], sizes["channels"], sizes["depth"], sizes["side"], sizes["side"])
    ]


def get_init_inputs():
    return [sizes[name] for name in ("channels", "filters", "kernel", "side")]
