"""GroupNorm between two SiLUs and a parameter."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, in_features, out_features, num_groups):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.norm = nn.GroupNorm(num_groups, out_features)
        self.weight = nn.Parameter(torch.randn(out_features))

    def forward(self, x):
        x = F.silu(self.norm(self.linear(x)))
        return F.silu(x * self.weight)


batch_size = 33
in_features = 48
out_features = 192
num_groups = 12
EXPECTED = {"kernels": 1, "aten": ["linear"]}


def get_inputs():
    return [torch.randn(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features, num_groups]
