"""SiLU, a second bias and GroupNorm with groups of 64."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, in_features, out_features, num_groups):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.bias = nn.Parameter(torch.randn(out_features))
        self.norm = nn.GroupNorm(num_groups, out_features)

    def forward(self, x):
        return self.norm(F.silu(self.linear(x)) + self.bias)


batch_size = 50
in_features = 32
out_features = 256
num_groups = 4
EXPECTED = {"kernels": 1, "aten": ["linear"]}


def get_inputs():
    return [torch.randn(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features, num_groups]
