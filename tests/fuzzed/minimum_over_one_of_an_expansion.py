"""Found by tests/fuzz.py, seed 110030, compiled on cpu."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 5


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x0):
        v0 = x0.roll(1, 0)
        v1 = v0[:, :, -1:]
        v2 = v1.expand(v1.shape[0], 2, 1)
        v3 = torch.amin(v2, dim=[2], keepdim=True)
        return v3


def get_inputs():
    return [
        torch.randn(batch, 1, 4),
    ]


def get_init_inputs():
    return []
