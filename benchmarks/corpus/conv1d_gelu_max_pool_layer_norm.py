"""One spatial axis: GELU, a pool, LayerNorm over what is left of it."""

import torch
import torch.nn.functional as F
from torch import nn

VARIANTS = {
    "full": dict(batch=64, channels=32, filters=128, kernel=5, side=4096),
    "small": dict(batch=3, channels=3, filters=8, kernel=5, side=20),
}
CHOSEN = "full"
sizes = VARIANTS[CHOSEN]


class Model(nn.Module):
    def __init__(self, channels, filters, kernel, side):
        super().__init__()
        self.conv = nn.Conv1d(channels, filters, kernel, padding=kernel // 2)
        self.pool = nn.MaxPool1d(2)
        self.norm = nn.LayerNorm(side // 2)

    def forward(self, x):
        return self.norm(self.pool(F.gelu(self.conv(x))))


def get_inputs():
    return [torch.randn(sizes["batch"], sizes["channels"], sizes["side"])]


def get_init_inputs():
    return [sizes[name] for name in ("channels", "filters", "kernel", "side")]
