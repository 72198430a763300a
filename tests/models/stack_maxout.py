"""The largest of several affine pieces, through a stack."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(3, 20))

    def forward(self, x):
        a, b, c = self.scale.unbind(0)
        return torch.stack([x * a, x * b, x * c], dim=-1).amax(dim=-1)


batch_size = 6
EXPECTED = {"kernels": 1, "aten": []}


def get_inputs():
    return [torch.randn(batch_size, 20)]


def get_init_inputs():
    return []
