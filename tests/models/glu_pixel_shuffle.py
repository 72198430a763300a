"""A gated linear unit over channels, and channels rearranged into space."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return F.pixel_shuffle(F.glu(x, dim=1), 2) - 0.5


batch_size = 3
EXPECTED = {"kernels": 1, "aten": []}


def get_inputs():
    return [torch.randn(batch_size, 16, 3, 5)]


def get_init_inputs():
    return []
