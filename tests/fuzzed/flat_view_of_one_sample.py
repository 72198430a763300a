"""Of one sample, flatten is a view in the order of movedim; of several, a copy (seed 181540)."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 5


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x0):
        v0 = x0.movedim(2, 0)
        v1 = v0.mul(0.5).sub_(0.1).tanh_()
        v5 = v1.flatten(0, 1)
        return v5


def get_inputs():
    return [
        torch.randn(batch, 4, 4),
    ]


def get_init_inputs():
    return []
