"""A scaled value plus a detached copy of itself."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x):
        x = self.linear(x)
        original = x.clone().detach()
        return x * 0.5 + original


batch_size = 13
in_features = 60
out_features = 20
EXPECTED = {"kernels": 1, "aten": ["linear"]}


def get_inputs():
    return [torch.randn(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features]
