"""The last bias has no kernel to go to and stays in the library call."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, in_features, out_features, last_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.second = nn.Linear(out_features, last_features)

    def forward(self, x):
        return self.second(torch.relu(self.linear(x)))


batch_size = 27
in_features = 24
out_features = 40
last_features = 10
EXPECTED = {"kernels": 1, "aten": ["linear", "linear"]}


def get_inputs():
    return [torch.randn(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features, last_features]
