"""Lp pooling in one dimension, and indices that somebody wants."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.length = 3

    def forward(self, x):
        norm = F.lp_pool1d(x, 2, self.length, 2)
        values, places = F.max_pool1d(x, 4, return_indices=True)
        return norm, values, places


batch_size = 3
EXPECTED = {"kernels": 1, "aten": ["max_pool1d_with_indices"]}


def get_inputs():
    return [torch.randn(batch_size, 5, 33)]


def get_init_inputs():
    return []
