"""Found by tests/fuzz.py, seed 98003, compiled on cpu."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 5


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.p1 = nn.BatchNorm1d(1, track_running_stats=False)

    def forward(self, x0):
        v2 = self.p1(x0)
        return v2


def get_inputs():
    return [
        torch.randn(batch, 1),
    ]


def get_init_inputs():
    return []
