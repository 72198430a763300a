"""A mean over features through a transposed view, in training mode; odd sizes."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x):
        return (self.linear(x) * 0.5 + 1.25).transpose(0, 1).mean(0)


batch_size = 13
in_features = 37
out_features = 61
EXPECTED = {"kernels": 3, "aten": []}


def get_inputs():
    return [torch.randn(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features]
