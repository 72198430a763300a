"""Found by tests/fuzz.py, seed 101106, compiled on cpu."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 5


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x0):
        v0 = x0.roll(1, 1)
        v1 = v0.permute(0, 2, 3, 1).contiguous()
        v2 = v1[:, :1, 3]
        v3 = v2.expand(v2.shape[0], 2, 4)
        return v3


def get_inputs():
    return [
        torch.randn(batch, 4, 8, 5),
    ]


def get_init_inputs():
    return []
