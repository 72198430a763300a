"""Found by tests/fuzz.py, seed 100831, compiled on cpu."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 5


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.p0 = nn.BatchNorm2d(8, track_running_stats=False)
        self.eval()

    def forward(self, x0):
        v0 = torch.permute(x0, (0, 3, 2, 1))
        v1 = self.p0(v0)
        return v1


def get_inputs():
    return [
        torch.randn(batch, 4, 12, 8),
    ]


def get_init_inputs():
    return []
