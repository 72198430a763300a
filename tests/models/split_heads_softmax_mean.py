"""Views split and reorder heads before the reductions."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.heads = heads

    def forward(self, x):
        x = x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)
        return torch.softmax(x, dim=-1).mean(dim=-1)


batch_size = 4
length = 6
features = 24
heads = 4
EXPECTED = {"kernels": 1, "aten": []}


def get_inputs():
    return [torch.randn(batch_size, length, features)]


def get_init_inputs():
    return [heads]
