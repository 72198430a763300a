"""Compiled for one sample: copies that are none in eager."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 1


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x0):
        v0 = x0.roll(1, 1)
        v1 = v0.transpose(0, 1).reshape(4, -1)
        v2 = v1[1]
        v3 = v1[:, ::2]
        v4 = v0.mT.contiguous()[:, 1]
        return (v2, v3, v4)


def get_inputs():
    return [
        torch.randn(batch, 4, 6),
    ]


def get_init_inputs():
    return []
