"""A maximum over channels, then a mean over one spatial axis."""

import torch
from torch import nn

VARIANTS = {
    "full": dict(batch=32, channels=16, filters=128, kernel=3, side=128),
    "small": dict(batch=3, channels=3, filters=8, kernel=3, side=11),
}
CHOSEN = "full"
sizes = VARIANTS[CHOSEN]


class Model(nn.Module):
    def __init__(self, channels, filters, kernel):
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, kernel)

    def forward(self, x):
        x = torch.amax(self.conv(x), dim=1, keepdim=True)
        return torch.tanh(x.mean(dim=2, keepdim=True))


def get_inputs():
    return [torch.rand(sizes["batch"], sizes["channels"], sizes["side"], sizes["side"])]


def get_init_inputs():
    return [sizes[name] for name in ("channels", "filters", "kernel")]
