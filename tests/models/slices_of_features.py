"""Slices from both ends and by a step, read where they lie: one kernel."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x[:, 3:33:2] * x[:, -15:] + x[:, 7:8]


batch_size = 6
features = 45
EXPECTED = {"kernels": 1, "aten": []}


def get_inputs():
    return [torch.randn(batch_size, features)]


def get_init_inputs():
    return []
