"""Found by tests/fuzz.py, seed 100572, compiled on cpu."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 5


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.eval()

    def forward(self, x0):
        v0 = F.pixel_unshuffle(x0, 3)
        v1 = F.gelu(v0)
        return v1


def get_inputs():
    return [
        torch.randn(batch, 4, 6, 6),
    ]


def get_init_inputs():
    return []
