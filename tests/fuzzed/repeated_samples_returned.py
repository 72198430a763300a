"""Seed 15: a repeat was a view of its input, so that who wrote to it wrote to the input."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 5


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.eval()

    def forward(self, x0):
        v0 = x0.repeat(3, 1, 1)
        v1 = x0.repeat(1, 1, 1)
        v2 = v1[0]
        return (v0, v2)


def get_inputs():
    return [
        torch.randn(batch, 1, 1),
    ]


def get_init_inputs():
    return []
