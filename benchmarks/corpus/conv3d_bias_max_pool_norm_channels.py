"""Pooled maxima, and the length of each voxel's vector."""

import torch
from torch import nn

VARIANTS = {
    "full": dict(batch=64, channels=8, filters=24, kernel=3, depth=16, side=56),
    "small": dict(batch=2, channels=3, filters=4, kernel=3, depth=6, side=7),
}
CHOSEN = "full"
sizes = VARIANTS[CHOSEN]


class Model(nn.Module):
    def __init__(self, channels, filters, kernel):
        super().__init__()
        self.conv = nn.Conv3d(channels, filters, kernel)
        self.pool = nn.MaxPool3d(2)
        self.bias = nn.Parameter(torch.randn(filters, 1, 1, 1))

    def forward(self, x):
        x = self.pool(self.conv(x) + self.bias)
        return torch.linalg.vector_norm(x, dim=1)


def get_inputs():
    return [
        torch.rand(sizes["batch"], sizes["channels"], sizes["depth"], sizes["side"], sizes["side"])
    ]


def get_init_inputs():
    return [sizes[name] for name in ("channels", "filters", "kernel")]
