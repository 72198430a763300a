"""Squeeze and excitation right behind a batch norm: means go through a product and come back."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.excite = nn.Linear(channels, channels)

    def forward(self, x):
        x = self.norm(x)
        gate = torch.sigmoid(self.excite(x.mean(dim=(2, 3))))
        return x * gate[:, :, None, None]


batch_size = 3
channels = 6
EXPECTED = {"kernels": 3, "aten": ["linear"]}


def get_inputs():
    return [torch.randn(batch_size, channels, 7, 10) + 4]


def get_init_inputs():
    return [channels]
