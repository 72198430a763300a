"""The first founding model, small enough to print every stage of (see worked_example.md)."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, in_features, out_features, num_groups, bias_shape):
        super().__init__()
        self.gemm = nn.Linear(in_features, out_features)
        self.group_norm = nn.GroupNorm(num_groups, out_features)
        self.bias = nn.Parameter(torch.randn(bias_shape))

    def forward(self, x):
        x = self.gemm(x)
        x = self.group_norm(x)
        smallest = torch.min(x, dim=1, keepdim=True)[0]
        return smallest + self.bias


def get_inputs():
    return [torch.rand(32, 64)]


def get_init_inputs():
    return [64, 128, 8, (1, 128, 1, 1)]
