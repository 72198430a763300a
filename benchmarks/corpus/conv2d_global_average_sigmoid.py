"""The mean over space of a convolution, which sums of the input determine."""

import torch
from torch import nn

VARIANTS = {
    "full": dict(batch=64, channels=32, filters=128, kernel=3, side=112),
    "small": dict(batch=3, channels=3, filters=8, kernel=3, side=11),
}
CHOSEN = "full"
sizes = VARIANTS[CHOSEN]


class Model(nn.Module):
    def __init__(self, channels, filters, kernel):
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, kernel)

    def forward(self, x):
        return torch.sigmoid(self.conv(x).mean(dim=(2, 3)))


def get_inputs():
    return [torch.randn(sizes["batch"], sizes["channels"], sizes["side"], sizes["side"])]


def get_init_inputs():
    return [sizes[name] for name in ("channels", "filters", "kernel")]
