"""Borders of a number around an image, its columns rolled, and an average over the whole."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        bordered = F.pad(x, (1, 2, 0, 1), value=0.5)
        return bordered.mean(dim=(2, 3)), torch.roll(x, 2, dims=3) - F.pad(x, (1, 0))[..., :-1]


batch_size = 3
EXPECTED = {"kernels": 2, "aten": []}


def get_inputs():
    return [torch.randn(batch_size, 4, 5, 8)]


def get_init_inputs():
    return []
