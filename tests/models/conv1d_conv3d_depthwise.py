"""Depthwise convolutions in one and in three dimensions."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Conv1d(4, 8, 7, padding=3, groups=4)
        self.volume = nn.Conv3d(4, 4, 3, padding=1, groups=4)

    def forward(self, x):
        line = torch.sigmoid(self.line(x.flatten(2)))
        return line, self.volume(x) * 2


batch_size = 2
EXPECTED = {"kernels": 2, "aten": []}


def get_inputs():
    return [torch.randn(batch_size, 4, 5, 6, 7)]


def get_init_inputs():
    return []
