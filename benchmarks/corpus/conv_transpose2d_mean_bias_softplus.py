"""The mean over space of a transposed convolution."""

import torch
import torch.nn.functional as F
from torch import nn

VARIANTS = {
    "full": dict(batch=64, channels=32, filters=64, kernel=3, side=144),
    "small": dict(batch=3, channels=3, filters=8, kernel=3, side=7),
}
CHOSEN = "full"
sizes = VARIANTS[CHOSEN]


class Model(nn.Module):
    def __init__(self, channels, filters, kernel):
        super().__init__()
        self.conv = nn.ConvTranspose2d(channels, filters, kernel)
        self.bias = nn.Parameter(torch.randn(filters, 1, 1))

    def forward(self, x):
        x = self.conv(x).mean(dim=(2, 3), keepdim=True)
        return F.softplus(x + self.bias)


def get_inputs():
    return [torch.randn(sizes["batch"], sizes["channels"], sizes["side"], sizes["side"])]


def get_init_inputs():
    return [sizes[name] for name in ("channels", "filters", "kernel")]
