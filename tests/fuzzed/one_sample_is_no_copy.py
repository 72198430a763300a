"""Written beside tests/fuzz.py: the memory of one sample, on cpu."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 5


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x0):
        v0 = torch.tanh(x0)
        v1 = x0.transpose(0, 1).contiguous()
        v2 = v0.expand(3, v0.shape[0], 6, 4).reshape(-1, 6, 4)
        return (v0, v1, v2)


def get_inputs():
    return [
        torch.randn(batch, 6, 4),
    ]


def get_init_inputs():
    return []
