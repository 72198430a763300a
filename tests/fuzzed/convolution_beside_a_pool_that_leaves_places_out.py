"""Found by tests/fuzz.py, seed 120875, planned on cpu."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 5


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.p0 = nn.Conv1d(6, 6, 3, stride=1, padding=1)

    def forward(self, x0):
        v0 = self.p0(x0)
        v1 = F.hardtanh(F.max_pool1d(v0, 2))
        v2 = torch.cumprod(v0 * 0.2 + 1.0, 1)
        return (v1, v2)


def get_inputs():
    return [
        torch.randn(batch, 6, 5),
    ]


def get_init_inputs():
    return []
