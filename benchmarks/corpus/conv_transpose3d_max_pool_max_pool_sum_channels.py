"""A wide kernel with a stride in three dimensions; one value in 216 is kept."""

import torch
from torch import nn

VARIANTS = {
    "full": dict(batch=12, channels=24, filters=48, kernel=5, depth=28, side=28),
    "small": dict(batch=2, channels=3, filters=4, kernel=5, depth=4, side=5),
}
CHOSEN = "full"
sizes = VARIANTS[CHOSEN]


class Model(nn.Module):
    def __init__(self, channels, filters, kernel):
        super().__init__()
        self.conv = nn.ConvTranspose3d(channels, filters, kernel, stride=2, padding=2)
        self.first = nn.MaxPool3d(2)
        self.second = nn.MaxPool3d(3)

    def forward(self, x):
        return self.second(self.first(self.conv(x))).sum(dim=1, keepdim=True)


def get_inputs():
    return [
        torch.randn(sizes["batch"], sizes["channels"], sizes["depth"], sizes["side"], sizes["side"])
    ]


def get_init_inputs():
    return [sizes[name] for name in ("channels", "filters", "kernel")]
