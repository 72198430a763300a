"""The pool undoes the stride in three dimensions; the least channel follows."""

import torch
from torch import nn

VARIANTS = {
    "full": dict(batch=16, channels=24, filters=48, kernel=3, depth=16, side=32),
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
        self.pool = nn.AvgPool3d(2)

    def forward(self, x):
        x = torch.tanh(self.pool(self.conv(x)))
        return torch.amin(x, dim=1)


def get_inputs():
    return [
        torch.rand(sizes["batch"], sizes["channels"], sizes["depth"], sizes["side"], sizes["side"])
    ]


def get_init_inputs():
    return [sizes[name] for name in ("channels", "filters", "kernel")]
