"""Two outputs that lie in one copy, which a reshape makes."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 5


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x0):
        v0 = x0.roll(1, 1)
        v1 = v0.transpose(0, 1).reshape(4, -1)
        v2 = v1[1]
        v3 = v1[:, ::2]
        return (v2, v3)


def get_inputs():
    return [
        torch.randn(batch, 4, 6),
    ]


def get_init_inputs():
    return []
