"""The mean of each map of a batch norm in training mode: its statistics have it."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)
        self.norm = nn.BatchNorm2d(out_channels, momentum=0.2)

    def forward(self, x):
        return torch.tanh(self.norm(self.conv(x)).mean(dim=(2, 3)))


batch_size = 4
in_channels = 3
out_channels = 5
kernel_size = 3
EXPECTED = {"kernels": 2, "aten": ["conv2d"]}


def get_inputs():
    return [torch.randn(batch_size, in_channels, 9, 12)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size]
