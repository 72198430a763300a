"""Found by tests/fuzz.py, seed 130025, compiled on cpu."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 5


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x0):
        v0 = x0.repeat(2, 2, 1)
        v1 = v0[:, :, 1:5]
        v2 = v0[:, :, 5]
        return (v1, v2)


def get_inputs():
    return [
        torch.randn(batch, 6),
    ]


def get_init_inputs():
    return []
