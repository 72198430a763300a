"""BatchNorm2d in eval mode reads its running statistics."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, padding=1, groups=2)
        self.norm = nn.BatchNorm2d(out_channels)
        self.eval()

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x)))


batch_size = 3
in_channels = 4
out_channels = 6
kernel_size = 3
EXPECTED = {"kernels": 1, "aten": []}


def get_inputs():
    return [torch.randn(batch_size, in_channels, 8, 10)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size]
