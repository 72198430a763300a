"""A bias of shape (C, 1, 1) after the ReLU."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)
        self.bias = nn.Parameter(torch.randn(out_channels, 1, 1))

    def forward(self, x):
        return torch.relu(self.conv(x)) + self.bias


batch_size = 3
in_channels = 4
out_channels = 6
kernel_size = 3
EXPECTED = {"kernels": 1, "aten": ["conv2d"]}


def get_inputs():
    return [torch.randn(batch_size, in_channels, 9, 11)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size]
