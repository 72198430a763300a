"""Outputs that are detached in eager required gradients, or took them from the others."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 5


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.eval()

    def forward(self, x0):
        v0 = torch.relu(x0)
        v1 = v0.detach()
        v2 = x0.detach()
        v3 = v2.view(-1, 2)
        return (v1, v0, v3)


def get_inputs():
    return [
        torch.randn(batch, 4),
    ]


def get_init_inputs():
    return []
