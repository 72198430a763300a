"""The negative of a negative value was written as a decrement of it."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 5


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x1):
        v2 = -x1
        v5 = F.softmin(v2, -1)
        return v5


def get_inputs():
    return [
        torch.randn(batch, 2, 6, 6),
    ]


def get_init_inputs():
    return []
