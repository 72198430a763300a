"""Found by tests/fuzz.py, seed 100445, compiled on cpu."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 5


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.p0 = nn.BatchNorm1d(4, affine=False)
        self.to(torch.float16)

    def forward(self, x0):
        v0 = torch.tanh(x0)
        v1 = self.p0(v0)
        return (v1, v0)


def get_inputs():
    return [
        torch.randn(batch, 4, 5, dtype=torch.float16),
    ]


def get_init_inputs():
    return []
