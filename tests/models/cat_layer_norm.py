"""A LayerNorm over parts of different sizes, which are read where they lie."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(12 + 20 + 12)

    def forward(self, x, y):
        return self.norm(torch.cat([x, torch.relu(y), x * 0.5], dim=1))


batch_size = 6
EXPECTED = {"kernels": 1, "aten": []}


def get_inputs():
    return [torch.randn(batch_size, 12), torch.randn(batch_size, 20)]


def get_init_inputs():
    return []
