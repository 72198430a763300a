"""A stride of one: a convolution in disguise."""

import torch
import torch.nn.functional as F
from torch import nn

VARIANTS = {
    "full": dict(batch=48, channels=64, filters=64, kernel=3, side=112),
    "small": dict(batch=3, channels=3, filters=8, kernel=3, side=8),
}
CHOSEN = "full"
sizes = VARIANTS[CHOSEN]


class Model(nn.Module):
    def __init__(self, channels, filters, kernel):
        super().__init__()
        self.conv = nn.ConvTranspose2d(channels, filters, kernel, padding=1)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x):
        x = F.hardtanh(self.pool(self.conv(x)))
        return torch.tanh(x.mean(dim=(2, 3), keepdim=True))


def get_inputs():
    return [torch.rand(sizes["batch"], sizes["channels"], sizes["side"], sizes["side"])]


def get_init_inputs():
    return [sizes[name] for name in ("channels", "filters", "kernel")]
