"""Norms in front of pools leave their statistics; the pools compute the rest."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.GroupNorm(2, 6)

    def forward(self, x):
        pooled = F.max_pool2d(self.norm(x), 3, 2, 1)
        return F.avg_pool2d(torch.softmax(x, 1), 2) * 3, torch.tanh(pooled)


batch_size = 3
EXPECTED = {"kernels": 4, "aten": []}


def get_inputs():
    return [torch.randn(batch_size, 6, 15, 14)]


def get_init_inputs():
    return []
