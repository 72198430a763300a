"""GELU and GroupNorm on the maps of a transposed convolution."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, num_groups):
        super().__init__()
        self.conv = nn.ConvTranspose2d(in_channels, out_channels, kernel_size, stride=2)
        self.norm = nn.GroupNorm(num_groups, out_channels)

    def forward(self, x):
        return self.norm(F.gelu(self.conv(x)))


batch_size = 3
in_channels = 3
out_channels = 8
kernel_size = 4
num_groups = 4
EXPECTED = {"kernels": 1, "aten": ["conv_transpose2d"]}


def get_inputs():
    return [torch.randn(batch_size, in_channels, 7, 7)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, num_groups]
