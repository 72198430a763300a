"""Affine InstanceNorm on 3-D data and Softplus."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv1d(in_channels, out_channels, kernel_size, stride=2)
        self.norm = nn.InstanceNorm1d(out_channels, affine=True)

    def forward(self, x):
        return F.softplus(self.norm(self.conv(x)))


batch_size = 4
in_channels = 3
out_channels = 6
kernel_size = 5
EXPECTED = {"kernels": 1, "aten": ["conv1d"]}


def get_inputs():
    return [torch.randn(batch_size, in_channels, 41)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size]
