"""A model in eval mode: Dropout is the identity."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.dropout = nn.Dropout(0.3)
        self.eval()

    def forward(self, x):
        return self.dropout(torch.relu(self.linear(x))).sum(dim=1, keepdim=True)


batch_size = 13
in_features = 60
out_features = 20
EXPECTED = {"kernels": 1, "aten": ["linear"]}


def get_inputs():
    return [torch.randn(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features]
