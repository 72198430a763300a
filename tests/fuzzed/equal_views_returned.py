"""Found by tests/fuzz.py, seed 101485, compiled on cpu."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 5


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x0):
        v0 = x0.repeat_interleave(2, 1)
        v1 = v0[:, 1:2:1]
        v2 = v0[:, 1]
        v3 = v1.mT
        return (v2, v3)


def get_inputs():
    return [
        torch.randn(batch, 1),
    ]


def get_init_inputs():
    return []
