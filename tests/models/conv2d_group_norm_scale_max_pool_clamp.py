"""GroupNorm and a scale, a pooling with ATen, a clamp."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, num_groups):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)
        self.norm = nn.GroupNorm(num_groups, out_channels)
        self.scale = nn.Parameter(torch.randn(out_channels, 1, 1))
        self.pool = nn.MaxPool2d(2)

    def forward(self, x):
        x = self.norm(self.conv(x)) * self.scale
        return torch.clamp(self.pool(x), 0.0, 1.0)


batch_size = 3
in_channels = 3
out_channels = 8
kernel_size = 3
num_groups = 2
EXPECTED = {"kernels": 2, "aten": ["conv2d"]}


def get_inputs():
    return [torch.randn(batch_size, in_channels, 10, 10)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, num_groups]
