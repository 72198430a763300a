"""A volume, channel by channel; tanh is monotone."""

import torch
from torch import nn

VARIANTS = {
    "full": dict(batch=16, channels=32, kernel=3, depth=32, side=40),
    "small": dict(batch=2, channels=3, kernel=3, depth=6, side=7),
}
CHOSEN = "full"
sizes = VARIANTS[CHOSEN]


class Model(nn.Module):
    def __init__(self, channels, kernel):
        super().__init__()
        self.conv = nn.Conv3d(channels, channels, kernel, padding=1, groups=channels)
        self.pool = nn.MaxPool3d(2)

    def forward(self, x):
        return self.pool(torch.tanh(self.conv(x)))


def get_inputs():
    return [
        torch.rand(sizes["batch"], sizes["channels"], sizes["depth"], sizes["side"], sizes["side"])
    ]


def get_init_inputs():
    return [sizes[name] for name in ("channels", "kernel")]
