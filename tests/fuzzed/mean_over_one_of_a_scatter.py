"""Found by tests/fuzz.py, seed 130217, compiled on cpu."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 5


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x0):
        v0 = torch.select_scatter(x0, x0.select(1, 0) * 2.0, 1, 0)
        v1 = torch.mean(v0, dim=[1], keepdim=True)
        return v1


def get_inputs():
    return [
        torch.randn(batch, 1, 12),
    ]


def get_init_inputs():
    return []
