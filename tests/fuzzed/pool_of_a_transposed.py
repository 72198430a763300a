"""Found by tests/fuzz.py, seed 171134, compiled on cpu."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 5


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x1):
        v2 = x1.mT
        v6 = F.max_pool1d(v2, 3)
        return v6


def get_inputs():
    return [
        torch.randn(batch, 6, 2),
    ]


def get_init_inputs():
    return []
