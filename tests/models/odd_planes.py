"""Planes of an odd number of places: on a GPU their vectors begin anywhere in a row."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(6, 1, 1))
        self.shift = nn.Parameter(torch.randn(6, 1, 1))

    def forward(self, x, y):
        return F.hardswish(x * self.scale + self.shift) * y


batch_size = 5
EXPECTED = {"kernels": 1, "aten": []}


def get_inputs():
    return [torch.randn(batch_size, 6, 17, 19) * 2, torch.randn(batch_size, 6, 17, 19)]


def get_init_inputs():
    return []
