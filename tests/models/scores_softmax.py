"""Attention scores of a 4-D tensor with its own transpose."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        scores = torch.matmul(x, x.transpose(-1, -2)) / x.shape[-1] ** 0.5
        return torch.softmax(scores, dim=-1)


batch_size = 4
heads = 6
length = 5
width = 8
EXPECTED = {"kernels": 1, "aten": ["matmul"]}


def get_inputs():
    return [torch.randn(batch_size, heads, length, width)]


def get_init_inputs():
    return []
