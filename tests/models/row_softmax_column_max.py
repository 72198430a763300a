"""Reductions over different axes need two kernels."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.amax(torch.softmax(x, dim=1), dim=0)


batch_size = 17
features = 31
EXPECTED = {"kernels": 2, "aten": []}


def get_inputs():
    return [torch.randn(batch_size, features)]


def get_init_inputs():
    return []
