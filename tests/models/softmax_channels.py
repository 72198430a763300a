"""A softmax over the channels of a 5-D tensor."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1)


batch_size = 2
channels = 7
EXPECTED = {"kernels": 1, "aten": []}


def get_inputs():
    return [torch.randn(batch_size, channels, 5, 6, 3)]


def get_init_inputs():
    return []
