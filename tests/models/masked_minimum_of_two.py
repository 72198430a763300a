"""A boolean mask and two inputs, one of which broadcasts."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x, y, mask):
        x = torch.minimum(x, y)
        return torch.where(mask, x, -1.0).sum(dim=-1)


batch_size = 8
length = 5
features = 26
EXPECTED = {"kernels": 1, "aten": []}


def get_inputs():
    return [
        torch.randn(batch_size, length, features),
        torch.randn(batch_size, 1, features),
        torch.rand(batch_size, length, features) > 0.3,
    ]


def get_init_inputs():
    return []
