"""Groups of eight channels, a kernel of five."""

import torch
from torch import nn

VARIANTS = {
    "full": dict(batch=32, channels=32, filters=64, kernel=5, groups=4, side=128),
    "small": dict(batch=3, channels=4, filters=8, kernel=5, groups=2, side=11),
}
CHOSEN = "full"
sizes = VARIANTS[CHOSEN]


class Model(nn.Module):
    def __init__(self, channels, filters, kernel, groups):
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, kernel, groups=groups)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x):
        return self.pool(torch.relu(self.conv(x)))


def get_inputs():
    return [torch.rand(sizes["batch"], sizes["channels"], sizes["side"], sizes["side"])]


def get_init_inputs():
    return [sizes[name] for name in ("channels", "filters", "kernel", "groups")]
