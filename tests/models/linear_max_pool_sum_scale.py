"""A pooling over features that stays with ATen, between two kernels."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.pool = nn.MaxPool1d(2)

    def forward(self, x):
        x = self.pool(self.linear(x).unsqueeze(1)).squeeze(1)
        return torch.sum(x, dim=1) * 0.5


batch_size = 20
in_features = 30
out_features = 40
EXPECTED = {"kernels": 2, "aten": ["linear"]}


def get_inputs():
    return [torch.randn(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features]
