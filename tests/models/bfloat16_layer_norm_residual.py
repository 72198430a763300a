"""A bfloat16 residual around LayerNorm."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.bfloat16()

    def forward(self, x):
        return x + self.norm(x)


batch_size = 5
length = 9
features = 40
EXPECTED = {"kernels": 1, "aten": []}


def get_inputs():
    return [torch.randn(batch_size, length, features).bfloat16()]


def get_init_inputs():
    return [features]
