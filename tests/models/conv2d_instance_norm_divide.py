"""InstanceNorm without parameters, divided."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)
        self.norm = nn.InstanceNorm2d(out_channels)

    def forward(self, x):
        return self.norm(self.conv(x)) / 2.0


batch_size = 5
in_channels = 4
out_channels = 4
kernel_size = 3
EXPECTED = {"kernels": 1, "aten": ["conv2d"]}


def get_inputs():
    return [torch.randn(batch_size, in_channels, 9, 7)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size]
