"""Outputs that have memory of their own in eager were views of inputs, or of each other."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 5


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.eval()

    def forward(self, x0):
        v0 = x0.clone()
        v1 = v0.view(-1)
        v2 = torch.roll(x0, [0], [1])
        v3 = v2[:, 1:]
        v4 = x0.sum(2)
        v5 = x0.amax(2)
        v6 = torch.relu(x0)
        v7 = v6.clone()
        v8 = v7[:, 1:]
        return (v1, v3, v4, v5, v6, v8)


def get_inputs():
    return [
        torch.randn(batch, 4, 1),
    ]


def get_init_inputs():
    return []
