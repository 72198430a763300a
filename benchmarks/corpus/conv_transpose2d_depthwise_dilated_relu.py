"""Every channel enlarged by itself with a dilated kernel."""

import torch
from torch import nn

VARIANTS = {
    "full": dict(batch=32, channels=64, kernel=3, side=120),
    "small": dict(batch=3, channels=5, kernel=3, side=7),
}
CHOSEN = "full"
sizes = VARIANTS[CHOSEN]


class Model(nn.Module):
    def __init__(self, channels, kernel):
        super().__init__()
        self.conv = nn.ConvTranspose2d(channels, channels, kernel, dilation=2, groups=channels)

    def forward(self, x):
        return torch.relu(self.conv(x))


def get_inputs():
    return [torch.randn(sizes["batch"], sizes["channels"], sizes["side"], sizes["side"])]


def get_init_inputs():
    return [sizes[name] for name in ("channels", "kernel")]
