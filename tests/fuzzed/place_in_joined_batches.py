"""A sample of several batches in a row: which batch it is of, their size decides."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 5


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x0):
        v0 = torch.concat([x0, x0 * 2.0, torch.relu(x0)], 0)
        v1 = v0.narrow(0, 14, 1)
        v2 = v1 + 1.0
        return v2


def get_inputs():
    return [
        torch.randn(batch),
    ]


def get_init_inputs():
    return []
