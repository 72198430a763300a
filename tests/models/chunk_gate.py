"""Two halves of the features, one of which gates the other."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        value, gate = x.chunk(2, dim=-1)
        return value * F.silu(gate)


batch_size = 6
features = 44
EXPECTED = {"kernels": 1, "aten": []}


def get_inputs():
    return [torch.randn(batch_size, features)]


def get_init_inputs():
    return []
