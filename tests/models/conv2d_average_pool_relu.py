"""Average pooling goes before the convolution, which then has a stride; odd sizes."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.pool = nn.AvgPool2d(2)

    def forward(self, x):
        return torch.relu(self.pool(self.conv(x)))


batch_size = 3
in_channels = 5
out_channels = 9
# On a CPU the product is float64's, and stays with ATen together with casts to and fro; where the
# library is slow at these, the pool stays where it is.
EXPECTED = {
    "cuda": {"kernels": 2, "aten": ["conv2d"]},
    "x86_64": {"kernels": 1, "aten": ["conv2d"]},
    "cpu": {"kernels": 2, "aten": [*["conv2d"] * 5, *["avg_pool2d"] * 4]},
}


def get_inputs():
    return [torch.randn(batch_size, in_channels, 11, 9)]


def get_init_inputs():
    return [in_channels, out_channels]
