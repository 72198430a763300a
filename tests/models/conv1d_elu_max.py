"""The largest value of each channel of a 1-D convolution."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv1d(in_channels, out_channels, kernel_size)

    def forward(self, x):
        return F.elu(self.conv(x)).amax(dim=2)


batch_size = 6
in_channels = 4
out_channels = 8
kernel_size = 3
EXPECTED = {"kernels": 1, "aten": ["conv1d"]}


def get_inputs():
    return [torch.randn(batch_size, in_channels, 50)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size]
