"""Batch statistics of an enlarged image, and a pool past which ELU may move."""

import torch
import torch.nn.functional as F
from torch import nn

VARIANTS = {
    "full": dict(batch=64, channels=48, filters=32, kernel=4, side=64),
    "small": dict(batch=3, channels=3, filters=8, kernel=4, side=6),
}
CHOSEN = "full"
sizes = VARIANTS[CHOSEN]
MODES = ("train", "eval")


class Model(nn.Module):
    def __init__(self, channels, filters, kernel):
        super().__init__()
        self.conv = nn.ConvTranspose2d(channels, filters, kernel, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(filters)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x):
        return self.pool(F.elu(self.norm(self.conv(x))))


def get_inputs():
    return [torch.randn(sizes["batch"], sizes["channels"], sizes["side"], sizes["side"])]


def get_init_inputs():
    return [sizes[name] for name in ("channels", "filters", "kernel")]
