"""Pools with padding, steps and rounding up, at odd sizes, share kernels with maps."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(7, 1, 1))

    def forward(self, x):
        largest = F.max_pool2d(torch.sin(x), 3, 2, 1)
        average = F.avg_pool2d(x * self.scale, 3, 2, 1, ceil_mode=True, count_include_pad=False)
        rounded = F.avg_pool2d(x, (2, 3), 2, (1, 1), ceil_mode=True)
        return largest * 2, torch.sigmoid(average), F.relu(rounded)


batch_size = 3
EXPECTED = {"kernels": 3, "aten": []}


def get_inputs():
    return [torch.randn(batch_size, 7, 13, 9)]


def get_init_inputs():
    return []
