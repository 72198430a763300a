"""A sum over the middle axis of 3-D data, and a square root."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.sqrt(torch.sum(x * x, dim=1) + 1.0)


batch_size = 6
length = 19
features = 23
EXPECTED = {"kernels": 1, "aten": []}


def get_inputs():
    return [torch.randn(batch_size, length, features)]


def get_init_inputs():
    return []
