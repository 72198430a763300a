"""Two cheap functions on padded borders."""

import torch
import torch.nn.functional as F
from torch import nn

VARIANTS = {
    "full": dict(batch=16, channels=12, filters=32, kernel=3, side=512),
    "small": dict(batch=3, channels=3, filters=8, kernel=3, side=11),
}
CHOSEN = "full"
sizes = VARIANTS[CHOSEN]


class Model(nn.Module):
    def __init__(self, channels, filters, kernel):
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, kernel, padding=kernel // 2)

    def forward(self, x):
        return F.hardsigmoid(3 * F.softsign(self.conv(x)))


def get_inputs():
    return [torch.randn(sizes["batch"], sizes["channels"], sizes["side"], sizes["side"])]


def get_init_inputs():
    return [sizes[name] for name in ("channels", "filters", "kernel")]
