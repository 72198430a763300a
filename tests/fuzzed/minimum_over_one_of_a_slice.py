"""Found by tests/fuzz.py, seed 100539, compiled on cpu."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 5


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.eval()

    def forward(self, x0):
        v0 = x0[:, :, -1:]
        v1 = v0.min(2, keepdim=False)[0]
        return v1


def get_inputs():
    return [
        torch.randn(batch, 6, 4),
    ]


def get_init_inputs():
    return []
