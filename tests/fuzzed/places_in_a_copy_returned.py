"""Integers that lie in a copy of another order, in a part of it."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 5


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x0):
        v0 = x0.argsort(-1)
        v1 = v0.mT.contiguous()
        v2 = v1[:, 1:4]
        return v2


def get_inputs():
    return [
        torch.randn(batch, 4, 6),
    ]


def get_init_inputs():
    return []
