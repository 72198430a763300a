"""Found by tests/fuzz.py, seed 100593, compiled on cpu."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 5


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.eval()

    def forward(self, x0):
        v0 = torch.roll(x0, [-2], [1])
        v1 = torch.broadcast_to(v0, (v0.shape[0], 12,))
        v2 = v1.reshape(v1.shape[0], 2, 6)
        return [v2, v0]


def get_inputs():
    return [
        torch.randn(batch, 12),
    ]


def get_init_inputs():
    return []
