"""Found by tests/fuzz.py, seed 101708, compiled on cpu."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 5


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.p0 = nn.GroupNorm(4, 4)
        self.eval()

    def forward(self, x0, x1):
        v0 = self.p0(x0)
        v1 = x0 * x1
        return (v0, v1)


def get_inputs():
    return [
        torch.randn(batch, 4),
        torch.randn(batch, 1),
    ]


def get_init_inputs():
    return []
