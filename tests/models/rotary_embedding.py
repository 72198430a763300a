"""Rotated halves: a cat of slices inside of a map. One kernel, and no copy."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.cosine = nn.Parameter(torch.randn(length, width))
        self.sine = nn.Parameter(torch.randn(length, width))

    def forward(self, x):
        first, second = x.chunk(2, dim=-1)
        return x * self.cosine + torch.cat([-second, first], dim=-1) * self.sine


batch_size = 3
heads = 2
length = 5
width = 16
EXPECTED = {"kernels": 1, "aten": []}


def get_inputs():
    return [torch.randn(batch_size, heads, length, width)]


def get_init_inputs():
    return []
