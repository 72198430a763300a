"""Found by tests/fuzz.py, seed 171019, compiled on cpu."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 1


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x0):
        v3 = F.softmin(x0, 1)
        v6 = v3.repeat(3, 1)
        v9 = torch.broadcast_to(v6, (v6.shape[0], 1,))
        return v9


def get_inputs():
    return [
        torch.randn(batch, 1),
    ]


def get_init_inputs():
    return []
