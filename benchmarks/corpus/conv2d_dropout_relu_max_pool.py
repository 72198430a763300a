"""Dropout, which is live in training."""

import torch
from torch import nn

VARIANTS = {
    "full": dict(batch=64, channels=16, filters=64, kernel=3, side=96),
    "small": dict(batch=3, channels=3, filters=8, kernel=3, side=11),
}
CHOSEN = "full"
sizes = VARIANTS[CHOSEN]
MODES = ("train", "eval")


class Model(nn.Module):
    def __init__(self, channels, filters, kernel):
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, kernel)
        self.drop = nn.Dropout(0.2)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x):
        return self.pool(torch.relu(self.drop(self.conv(x))))


def get_inputs():
    return [torch.rand(sizes["batch"], sizes["channels"], sizes["side"], sizes["side"])]


def get_init_inputs():
    return [sizes[name] for name in ("channels", "filters", "kernel")]
