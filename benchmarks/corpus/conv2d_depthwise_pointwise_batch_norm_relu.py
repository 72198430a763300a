"""A separable convolution with its norm."""

import torch
import torch.nn.functional as F
from torch import nn

VARIANTS = {
    "full": dict(batch=64, channels=64, filters=128, kernel=3, side=56),
    "small": dict(batch=3, channels=3, filters=8, kernel=3, side=11),
}
CHOSEN = "full"
sizes = VARIANTS[CHOSEN]
MODES = ("train", "eval")


class Model(nn.Module):
    def __init__(self, channels, filters, kernel):
        super().__init__()
        self.depthwise = nn.Conv2d(
            channels, channels, kernel, padding=1, groups=channels, bias=False
        )
        self.pointwise = nn.Conv2d(channels, filters, 1, bias=False)
        self.norm = nn.BatchNorm2d(filters)

    def forward(self, x):
        return F.relu6(self.norm(self.pointwise(self.depthwise(x))))


def get_inputs():
    return [torch.randn(sizes["batch"], sizes["channels"], sizes["side"], sizes["side"])]


def get_init_inputs():
    return [sizes[name] for name in ("channels", "filters", "kernel")]
