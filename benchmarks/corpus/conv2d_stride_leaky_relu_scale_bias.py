"""A wide kernel with a stride on three channels."""

import torch
import torch.nn.functional as F
from torch import nn

VARIANTS = {
    "full": dict(batch=64, channels=3, filters=64, kernel=5, side=256),
    "small": dict(batch=3, channels=3, filters=8, kernel=5, side=11),
}
CHOSEN = "full"
sizes = VARIANTS[CHOSEN]


class Model(nn.Module):
    def __init__(self, channels, filters, kernel):
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, kernel, stride=2, padding=2)
        self.scale = nn.Parameter(torch.randn(filters, 1, 1))
        self.bias = nn.Parameter(torch.randn(filters, 1, 1))

    def forward(self, x):
        return F.leaky_relu(self.conv(x), 0.1) * self.scale + self.bias


def get_inputs():
    return [torch.rand(sizes["batch"], sizes["channels"], sizes["side"], sizes["side"])]


def get_init_inputs():
    return [sizes[name] for name in ("channels", "filters", "kernel")]
