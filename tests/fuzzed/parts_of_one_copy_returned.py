"""Two outputs that lie in one copy of another order."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 5


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x0):
        v0 = x0.tanh()
        v1 = v0.permute(0, 2, 3, 1).contiguous()
        v2 = v1[:, 1]
        v3 = v1[:, :, 1:3]
        return (v2, v3)


def get_inputs():
    return [
        torch.randn(batch, 4, 8, 5),
    ]


def get_init_inputs():
    return []
