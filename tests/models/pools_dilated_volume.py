"""Dilated maxima in a volume, and a sum of averages of another size over them."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.randn(1))

    def forward(self, x):
        largest = F.max_pool3d(x + self.shift, (2, 3, 3), 1, (0, 1, 1), (1, 2, 2))
        average = F.avg_pool3d(largest, 2, divisor_override=3)
        return average - self.shift


batch_size = 2
EXPECTED = {"kernels": 2, "aten": []}


def get_inputs():
    return [torch.randn(batch_size, 3, 5, 9, 11)]


def get_init_inputs():
    return []
