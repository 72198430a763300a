"""A grouped transposed convolution, one number a voxel."""

import torch
from torch import nn

VARIANTS = {
    "full": dict(batch=16, channels=16, filters=32, kernel=3, groups=4, depth=16, side=32),
    "small": dict(batch=2, channels=4, filters=4, kernel=3, groups=2, depth=3, side=4),
}
CHOSEN = "full"
sizes = VARIANTS[CHOSEN]


class Model(nn.Module):
    def __init__(self, channels, filters, kernel, groups):
        super().__init__()
        self.conv = nn.ConvTranspose3d(
            channels, filters, kernel, stride=2, padding=1, groups=groups
        )

    def forward(self, x):
        x = torch.logsumexp(self.conv(x), dim=1, keepdim=True)
        return torch.tanh(x - 1)


def get_inputs():
    return [
        torch.rand(sizes["batch"], sizes["channels"], sizes["depth"], sizes["side"], sizes["side"])
    ]


def get_init_inputs():
    return [sizes[name] for name in ("channels", "filters", "kernel", "groups")]
