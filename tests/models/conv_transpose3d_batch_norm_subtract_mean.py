"""Batch statistics, then the mean of each map is taken off: two kernels."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv = nn.ConvTranspose3d(
            in_channels, out_channels, kernel_size, stride=2, padding=1, output_padding=1
        )
        self.norm = nn.BatchNorm3d(out_channels)

    def forward(self, x):
        x = self.norm(self.conv(x))
        return x - torch.mean(x, dim=(2, 3, 4), keepdim=True)


batch_size = 4
in_channels = 3
out_channels = 5
kernel_size = 3
EXPECTED = {"kernels": 2, "aten": ["conv_transpose3d"]}


def get_inputs():
    return [torch.randn(batch_size, in_channels, 4, 5, 4)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size]
