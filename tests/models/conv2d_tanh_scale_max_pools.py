"""Increasing functions run behind two max pools, which are one."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, 3)
        self.bias = nn.Parameter(torch.randn(out_channels, 1, 1))
        self.pool = nn.MaxPool2d(2)

    def forward(self, x):
        x = torch.tanh(self.conv(x)) * 2 + self.bias
        return self.pool(self.pool(x))


batch_size = 3
in_channels = 5
out_channels = 6
EXPECTED = {"kernels": 1, "aten": ["conv2d"]}


def get_inputs():
    return [torch.randn(batch_size, in_channels, 17, 15)]


def get_init_inputs():
    return [in_channels, out_channels]
