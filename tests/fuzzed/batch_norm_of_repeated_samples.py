"""Seed 15: runs of batch elements inside of a longer row were read beyond their end on the CPU."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 5


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.p0 = nn.BatchNorm1d(1)

    def forward(self, x0):
        v0 = x0.repeat(3, 1, 1)
        v1 = self.p0(v0)
        return v1


def get_inputs():
    return [
        torch.randn(batch, 1, 1),
    ]


def get_init_inputs():
    return []
