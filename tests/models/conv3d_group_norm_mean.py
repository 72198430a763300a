"""GroupNorm on a 5-D tensor and the mean of each sample."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, num_groups):
        super().__init__()
        self.conv = nn.Conv3d(in_channels, out_channels, kernel_size)
        self.norm = nn.GroupNorm(num_groups, out_channels)

    def forward(self, x):
        return self.norm(self.conv(x)).mean(dim=[1, 2, 3, 4])


batch_size = 4
in_channels = 3
out_channels = 8
kernel_size = 3
num_groups = 4
EXPECTED = {"kernels": 1, "aten": ["conv3d"]}


def get_inputs():
    return [torch.randn(batch_size, in_channels, 5, 6, 7)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, num_groups]
