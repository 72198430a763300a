"""A volume becomes one vector and that a few classes; linear from end to end."""

import torch
from torch import nn

VARIANTS = {
    "full": dict(batch=16, channels=8, filters=64, kernel=3, classes=10, depth=40, side=40),
    "small": dict(batch=2, channels=3, filters=4, kernel=3, classes=5, depth=6, side=7),
}
CHOSEN = "full"
sizes = VARIANTS[CHOSEN]


class Model(nn.Module):
    def __init__(self, channels, filters, kernel, classes):
        super().__init__()
        self.conv = nn.Conv3d(channels, filters, kernel)
        self.pool = nn.AdaptiveAvgPool3d(1)
        self.head = nn.Linear(filters, classes)

    def forward(self, x):
        return self.head(torch.flatten(self.pool(self.conv(x)), 1))


def get_inputs():
    return [
        torch.randn(sizes["batch"], sizes["channels"], sizes["depth"], sizes["side"], sizes["side"])
    ]


def get_init_inputs():
    return [sizes[name] for name in ("channels", "filters", "kernel", "classes")]
