"""Found by tests/fuzz.py, seed 99026, compiled on cpu."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 5


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x0):
        v1, v2 = x0.chunk(2, 0)
        return v1


def get_inputs():
    return [
        torch.randn(batch),
    ]


def get_init_inputs():
    return []
