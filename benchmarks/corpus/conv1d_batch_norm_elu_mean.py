"""One spatial axis, statistics over the batch, a mean over time."""

import torch
import torch.nn.functional as F
from torch import nn

VARIANTS = {
    "full": dict(batch=64, channels=16, filters=64, kernel=7, side=8192),
    "small": dict(batch=3, channels=3, filters=8, kernel=7, side=21),
}
CHOSEN = "full"
sizes = VARIANTS[CHOSEN]
MODES = ("train", "eval")


class Model(nn.Module):
    def __init__(self, channels, filters, kernel):
        super().__init__()
        self.conv = nn.Conv1d(channels, filters, kernel, stride=2)
        self.norm = nn.BatchNorm1d(filters)

    def forward(self, x):
        return F.elu(self.norm(self.conv(x))).mean(dim=2)


def get_inputs():
    return [torch.rand(sizes["batch"], sizes["channels"], sizes["side"])]


def get_init_inputs():
    return [sizes[name] for name in ("channels", "filters", "kernel")]
