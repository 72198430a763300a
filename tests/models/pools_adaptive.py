"""Adaptive pools: windows of one size are kernels, those of several stay with ATen."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d((3, 5))

    def forward(self, x):
        even = self.pool(torch.abs(x))
        largest, places = F.adaptive_max_pool2d(x, (6, 3), return_indices=True)
        uneven = F.adaptive_avg_pool2d(x, (5, 4))
        return even + 1, F.adaptive_max_pool2d(torch.tanh(x), 6), largest, places, uneven


batch_size = 2
EXPECTED = {"kernels": 2, "aten": ["adaptive_max_pool2d", "adaptive_avg_pool2d"]}


def get_inputs():
    return [torch.randn(batch_size, 4, 12, 30)]


def get_init_inputs():
    return []
