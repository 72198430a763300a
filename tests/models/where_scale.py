"""A comparison chooses between a value and a scaled one."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(features))

    def forward(self, x):
        return torch.where(x > 0.5, x, x * self.scale)


batch_size = 5
features = 9
EXPECTED = {"kernels": 1, "aten": []}


def get_inputs():
    return [torch.randn(batch_size, features)]


def get_init_inputs():
    return [features]
