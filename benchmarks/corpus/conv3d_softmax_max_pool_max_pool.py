"""Softmax over channels, and only one value in sixty-four is kept."""

import torch
from torch import nn

VARIANTS = {
    "full": dict(batch=96, channels=3, filters=20, kernel=3, depth=18, side=36),
    "small": dict(batch=2, channels=3, filters=4, kernel=3, depth=10, side=11),
}
CHOSEN = "full"
sizes = VARIANTS[CHOSEN]


class Model(nn.Module):
    def __init__(self, channels, filters, kernel):
        super().__init__()
        self.conv = nn.Conv3d(channels, filters, kernel)
        self.pool = nn.MaxPool3d(2)

    def forward(self, x):
        x = torch.softmax(self.conv(x), dim=1)
        return self.pool(self.pool(x))


def get_inputs():
    return [
        torch.rand(sizes["batch"], sizes["channels"], sizes["depth"], sizes["side"], sizes["side"])
    ]


def get_init_inputs():
    return [sizes[name] for name in ("channels", "filters", "kernel")]
