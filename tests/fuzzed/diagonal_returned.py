"""Found by tests/fuzz.py, seed 101460, compiled on cpu."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 5


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.eval()

    def forward(self, x0):
        v0 = x0.diagonal(0, -2, -1)
        return v0


def get_inputs():
    return [
        torch.randn(batch, 3, 3),
    ]


def get_init_inputs():
    return []
