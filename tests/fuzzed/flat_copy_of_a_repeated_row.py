"""A copy of repeated rows is due though the caller gets a view of it (seed 181158)."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 5


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x0):
        v3 = x0.rot90(1, (-2, -1))
        v5 = v3[-1:]
        v6 = v5.expand(3, v5.shape[1]).contiguous()
        v9 = torch.flatten(v6, 0, 1)
        return v9


def get_inputs():
    return [
        torch.randn(batch, 8),
    ]


def get_init_inputs():
    return []
