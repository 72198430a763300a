"""Written beside tests/fuzz.py: the memory of one sample, on cpu."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 1


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x0):
        v0 = torch.tanh(x0)
        v1 = v0.transpose(0, 1).contiguous()
        return (v0, v1)


def get_inputs():
    return [
        torch.randn(batch, 6, 4),
    ]


def get_init_inputs():
    return []
