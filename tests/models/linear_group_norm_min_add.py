"""A minimum over features added to a bias that makes the result 4-D."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, in_features, out_features, num_groups):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.norm = nn.GroupNorm(num_groups, out_features)
        self.bias = nn.Parameter(torch.randn(1, out_features, 1, 1))

    def forward(self, x):
        x = torch.min(self.norm(self.linear(x)), dim=1, keepdim=True)[0]
        return x + self.bias


batch_size = 33
in_features = 64
out_features = 128
num_groups = 8
EXPECTED = {"kernels": 2, "aten": ["linear"]}


def get_inputs():
    return [torch.randn(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features, num_groups]
