"""A UNet: two convolutions a level, max pooling down, transposed convolutions up, skips by cat."""

import torch
import torch.nn.functional as F
from torch import nn

VARIANTS = {
    "unet": dict(batch=4, image=128, width=32, depth=4, softmax=True),
    "small": dict(batch=2, image=8, width=4, depth=2, softmax=True),
}
CHOSEN = "unet"
sizes = VARIANTS[CHOSEN]


class Twice(nn.Module):
    def __init__(self, channels, out, softmax):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(out)
        self.softmax = softmax

    def forward(self, x):
        x = self.norm1(self.conv1(x))
        x = F.softmax(x, dim=-1) if self.softmax else F.relu(x, inplace=True)
        return F.relu(self.norm2(self.conv2(x)), inplace=True)


class Model(nn.Module):
    def __init__(self, width, depth, softmax):
        super().__init__()
        wide = [width * 2**i for i in range(depth)]
        self.down = nn.ModuleList(
            Twice(a, b, softmax and i == 0)
            for i, (a, b) in enumerate(zip([3, *wide[:-1]], wide, strict=True))
        )
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(wide[i], wide[i - 1], 2, stride=2) for i in reversed(range(1, depth))
        )
        self.join = nn.ModuleList(
            Twice(2 * wide[i - 1], wide[i - 1], False) for i in reversed(range(1, depth))
        )
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x):
        skips = []
        for i, level in enumerate(self.down):
            x = level(x if i == 0 else F.max_pool2d(x, 2))
            skips.append(x)
        skips.pop()
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([skips.pop(), up(x)], dim=1))
        return self.head(x)


def get_inputs():
    return [torch.randn(sizes["batch"], 3, sizes["image"], sizes["image"])]


def get_init_inputs():
    return [sizes[name] for name in ("width", "depth", "softmax")]
