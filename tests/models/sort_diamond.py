"""A value and its sorted self meet again: the sort stands in between."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        x = torch.softmax(x, dim=1)
        return x * torch.sort(x, dim=1)[0]


batch_size = 9
features = 21
EXPECTED = {"kernels": 2, "aten": ["sort"]}


def get_inputs():
    return [torch.randn(batch_size, features)]


def get_init_inputs():
    return []
