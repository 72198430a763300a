"""The mean over space of a strided transposed convolution needs sums of its input only."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = nn.ConvTranspose3d(
            in_channels, out_channels, 3, stride=2, padding=1, output_padding=1
        )

    def forward(self, x):
        return torch.tanh((self.conv(x) * 1.5).mean(dim=(2, 3, 4), keepdim=True))


batch_size = 3
in_channels = 5
out_channels = 7


def get_inputs():
    return [torch.randn(batch_size, in_channels, 5, 4, 7)]


def get_init_inputs():
    return [in_channels, out_channels]
