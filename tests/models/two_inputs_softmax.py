"""Two inputs and a parameter meet in one kernel."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(features))

    def forward(self, x, y):
        return torch.softmax(x * y + self.bias, dim=-1)


batch_size = 13
features = 29
EXPECTED = {"kernels": 1, "aten": []}


def get_inputs():
    return [torch.randn(batch_size, features), torch.randn(batch_size, features)]


def get_init_inputs():
    return [features]
