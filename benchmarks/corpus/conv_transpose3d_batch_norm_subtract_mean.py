"""Batch statistics of an enlarged volume, and each map without its mean."""

import torch
from torch import nn

VARIANTS = {
    "full": dict(batch=16, channels=16, filters=32, kernel=3, depth=16, side=32),
    "small": dict(batch=2, channels=3, filters=4, kernel=3, depth=3, side=4),
}
CHOSEN = "full"
sizes = VARIANTS[CHOSEN]
MODES = ("train", "eval")


class Model(nn.Module):
    def __init__(self, channels, filters, kernel):
        super().__init__()
        self.conv = nn.ConvTranspose3d(channels, filters, kernel, stride=2, padding=1)
        self.norm = nn.BatchNorm3d(filters)

    def forward(self, x):
        x = self.norm(self.conv(x))
        return x - x.mean(dim=(2, 3, 4), keepdim=True)


def get_inputs():
    return [
        torch.rand(sizes["batch"], sizes["channels"], sizes["depth"], sizes["side"], sizes["side"])
    ]


def get_init_inputs():
    return [sizes[name] for name in ("channels", "filters", "kernel")]
