"""A factor for each channel, of either sign, before the pool."""

import torch
import torch.nn.functional as F
from torch import nn

VARIANTS = {
    "full": dict(batch=16, channels=16, filters=32, kernel=3, depth=16, side=32),
    "small": dict(batch=2, channels=3, filters=4, kernel=3, depth=3, side=4),
}
CHOSEN = "full"
sizes = VARIANTS[CHOSEN]


class Model(nn.Module):
    def __init__(self, channels, filters, kernel):
        super().__init__()
        self.conv = nn.ConvTranspose3d(
            channels, filters, kernel, stride=2, padding=1, output_padding=1
        )
        self.scale = nn.Parameter(torch.randn(filters, 1, 1, 1))
        self.pool = nn.MaxPool3d(2)

    def forward(self, x):
        x = F.elu(self.conv(x)) * self.scale
        return self.pool(x)


def get_inputs():
    return [
        torch.randn(sizes["batch"], sizes["channels"], sizes["depth"], sizes["side"], sizes["side"])
    ]


def get_init_inputs():
    return [sizes[name] for name in ("channels", "filters", "kernel")]
