"""Found by tests/fuzz.py, seed 101515, compiled on cpu."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 5


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x0):
        v0 = x0.permute(0, 3, 1, 2)
        v1 = torch.tanh(v0)
        v2 = F.soft_margin_loss(v0, torch.sign(v0))
        return (v1, v2)


def get_inputs():
    return [
        torch.randn(batch, 4, 12, 9),
    ]


def get_init_inputs():
    return []
