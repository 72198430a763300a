"""Live Dropout stays with ATen on the CPU; on CUDA the softmax behind it reads its mask."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x):
        return torch.softmax(self.dropout(self.linear(x)), dim=1)


batch_size = 17
in_features = 30
out_features = 100
RANDOM = True
EXPECTED = {"kernels": 1, "aten": ["linear", "dropout"]}


def get_inputs():
    return [torch.randn(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features]
