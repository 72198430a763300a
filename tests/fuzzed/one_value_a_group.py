"""Found by tests/fuzz.py, seed 98028, compiled on cpu."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 5


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.p0 = nn.GroupNorm(1, 1)

    def forward(self, x1):
        v9 = self.p0(x1)
        return v9


def get_inputs():
    return [
        torch.randn(batch, 1),
    ]


def get_init_inputs():
    return []
