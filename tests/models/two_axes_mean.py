"""A mean over two axes that are not neighbours."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.mean(torch.abs(x), dim=(1, 3)) - 1.0


batch_size = 4
channels = 5
EXPECTED = {"kernels": 1, "aten": []}


def get_inputs():
    return [torch.randn(batch_size, channels, 7, 6)]


def get_init_inputs():
    return []
