"""Statistics over the batch, then a softmax over the features: two kernels."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.norm = nn.BatchNorm1d(out_features)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return torch.softmax(self.scale * self.norm(self.linear(x)), dim=1)


batch_size = 30
in_features = 30
out_features = 100
EXPECTED = {"kernels": 2, "aten": ["linear"]}


def get_inputs():
    return [torch.randn(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features]
