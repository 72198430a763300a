"""BatchNorm2d in training mode: statistics over the batch and both spatial axes."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, dilation=2, padding=2)
        self.norm = nn.BatchNorm2d(out_channels, momentum=0.3)

    def forward(self, x):
        return F.hardswish(self.norm(self.conv(x)))


batch_size = 5
in_channels = 3
out_channels = 7
kernel_size = 3
EXPECTED = {"kernels": 1, "aten": ["conv2d"]}


def get_inputs():
    return [torch.randn(batch_size, in_channels, 8, 9)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size]
