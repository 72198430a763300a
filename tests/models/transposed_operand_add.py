"""A square matrix per sample and its transpose."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x + 2.0 * x.transpose(1, 2)


batch_size = 6
size = 11
EXPECTED = {"kernels": 1, "aten": []}


def get_inputs():
    return [torch.randn(batch_size, size, size)]


def get_init_inputs():
    return []
