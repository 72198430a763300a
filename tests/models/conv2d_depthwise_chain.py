"""Depthwise convolutions of several kinds: sums over windows with their epilogues."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.second = nn.Conv2d(6, 12, 5, stride=2, padding=2, groups=6, bias=False)
        self.third = nn.Conv2d(12, 12, (3, 1), dilation=2, groups=4)
        self.norm = nn.BatchNorm2d(6).eval()

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        x = torch.tanh(self.second(x))
        return self.third(x).amax(1)


batch_size = 3
EXPECTED = {"kernels": 4, "aten": []}


def get_inputs():
    return [torch.randn(batch_size, 6, 17, 15)]


def get_init_inputs():
    return []
