"""A pre-norm residual on 3-D data."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        return x + F.gelu(self.norm(x))


batch_size = 5
length = 7
features = 36
EXPECTED = {"kernels": 1, "aten": []}


def get_inputs():
    return [torch.randn(batch_size, length, features)]


def get_init_inputs():
    return [features]
