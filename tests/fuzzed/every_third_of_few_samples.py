"""Up to three samples, every third one is one: torch takes that for a constant (seed 181669)."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 1


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.p2 = nn.GroupNorm(1, 8, affine=False)

    def forward(self, x0):
        v0 = x0[::3]
        v11 = self.p2(v0)
        return v11


def get_inputs():
    return [
        torch.randn(batch, 8, 9, 4),
    ]


def get_init_inputs():
    return []
