"""A transposed convolution, a pooling, and a mean over both spatial axes."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv = nn.ConvTranspose2d(in_channels, out_channels, kernel_size, stride=2, padding=1)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x):
        x = F.hardtanh(self.pool(self.conv(x)), -1.0, 1.0)
        return torch.tanh(torch.mean(x, dim=(2, 3), keepdim=True))


batch_size = 4
in_channels = 3
out_channels = 6
kernel_size = 3
EXPECTED = {"kernels": 2, "aten": ["conv_transpose2d"]}


def get_inputs():
    return [torch.randn(batch_size, in_channels, 7, 9)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size]
