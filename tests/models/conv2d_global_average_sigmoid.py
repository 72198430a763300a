"""Global average pooling is a mean, and the mean of a convolution needs sums of its input only."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)
        self.pool = nn.AdaptiveAvgPool2d(1)

    def forward(self, x):
        return torch.sigmoid(self.pool(self.conv(x))).flatten(1)


batch_size = 4
in_channels = 3
out_channels = 8
kernel_size = 3
# On a CPU the product is float64's, and stays with ATen together with casts to and fro.
EXPECTED = {
    "cuda": {"kernels": 2, "aten": ["conv2d"]},
    "cpu": {"kernels": 7, "aten": [*["conv2d"] * 6, *["adaptive_avg_pool2d"] * 6]},
}


def get_inputs():
    return [torch.randn(batch_size, in_channels, 9, 9)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size]
