"""Half of the channels gate the other half."""

import torch
from torch import nn

VARIANTS = {
    "full": dict(batch=32, channels=16, filters=64, kernel=3, side=128),
    "small": dict(batch=3, channels=3, filters=4, kernel=3, side=11),
}
CHOSEN = "full"
sizes = VARIANTS[CHOSEN]


class Model(nn.Module):
    def __init__(self, channels, filters, kernel):
        super().__init__()
        self.conv = nn.Conv2d(channels, 2 * filters, kernel)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x):
        values, gates = self.conv(x).chunk(2, dim=1)
        return self.pool(values * torch.sigmoid(gates))


def get_inputs():
    return [torch.randn(sizes["batch"], sizes["channels"], sizes["side"], sizes["side"])]


def get_init_inputs():
    return [sizes[name] for name in ("channels", "filters", "kernel")]
