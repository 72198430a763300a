"""Pooled first, then the mean of all channels."""

import torch
import torch.nn.functional as F
from torch import nn

VARIANTS = {
    "full": dict(batch=16, channels=4, filters=48, kernel=3, depth=32, side=64),
    "small": dict(batch=2, channels=3, filters=4, kernel=3, depth=6, side=7),
}
CHOSEN = "full"
sizes = VARIANTS[CHOSEN]


class Model(nn.Module):
    def __init__(self, channels, filters, kernel):
        super().__init__()
        self.conv = nn.Conv3d(channels, filters, kernel, padding=1)
        self.pool = nn.MaxPool3d(2)

    def forward(self, x):
        x = self.pool(self.conv(x)).mean(dim=1, keepdim=True)
        return F.gelu(x)


def get_inputs():
    return [
        torch.randn(sizes["batch"], sizes["channels"], sizes["depth"], sizes["side"], sizes["side"])
    ]


def get_init_inputs():
    return [sizes[name] for name in ("channels", "filters", "kernel")]
