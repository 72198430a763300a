"""Found by tests/fuzz.py, seed 181665, compiled on cpu."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 5


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x2):
        v5 = x2.permute(0, 2, 1).contiguous()
        return v5


def get_inputs():
    return [
        torch.randn(batch, 1, 1),
    ]


def get_init_inputs():
    return []
