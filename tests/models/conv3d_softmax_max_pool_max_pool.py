"""A softmax over channels in front of two poolings."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv3d(in_channels, out_channels, kernel_size)
        self.pool = nn.MaxPool3d(2)

    def forward(self, x):
        x = torch.softmax(self.conv(x), dim=1)
        return self.pool(self.pool(x))


batch_size = 3
in_channels = 3
out_channels = 7
kernel_size = 3
EXPECTED = {"kernels": 2, "aten": ["conv3d"]}


def get_inputs():
    return [torch.randn(batch_size, in_channels, 8, 9, 10)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size]
