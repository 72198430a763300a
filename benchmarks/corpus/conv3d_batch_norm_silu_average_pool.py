"""Statistics of a batch of volumes, then average pooling."""

import torch
import torch.nn.functional as F
from torch import nn

VARIANTS = {
    "full": dict(batch=16, channels=16, filters=32, kernel=3, depth=32, side=32),
    "small": dict(batch=2, channels=3, filters=4, kernel=3, depth=6, side=7),
}
CHOSEN = "full"
sizes = VARIANTS[CHOSEN]
MODES = ("train", "eval")


class Model(nn.Module):
    def __init__(self, channels, filters, kernel):
        super().__init__()
        self.conv = nn.Conv3d(channels, filters, kernel, padding=1)
        self.norm = nn.BatchNorm3d(filters)
        self.pool = nn.AvgPool3d(2)

    def forward(self, x):
        return self.pool(F.silu(self.norm(self.conv(x))))


def get_inputs():
    return [
        torch.randn(sizes["batch"], sizes["channels"], sizes["depth"], sizes["side"], sizes["side"])
    ]


def get_init_inputs():
    return [sizes[name] for name in ("channels", "filters", "kernel")]
