"""The stem of many image models: kernel 7, stride 2, a pool whose windows overlap."""

import torch
from torch import nn

VARIANTS = {
    "full": dict(batch=64, channels=3, filters=64, kernel=7, side=224),
    "small": dict(batch=3, channels=3, filters=8, kernel=7, side=16),
}
CHOSEN = "full"
sizes = VARIANTS[CHOSEN]
MODES = ("train", "eval")


class Model(nn.Module):
    def __init__(self, channels, filters, kernel):
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, kernel, stride=2, padding=3, bias=False)
        self.norm = nn.BatchNorm2d(filters)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)

    def forward(self, x):
        return self.pool(torch.relu(self.norm(self.conv(x))))


def get_inputs():
    return [torch.randn(sizes["batch"], sizes["channels"], sizes["side"], sizes["side"])]


def get_init_inputs():
    return [sizes[name] for name in ("channels", "filters", "kernel")]
