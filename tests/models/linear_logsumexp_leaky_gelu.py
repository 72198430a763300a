"""A long logsumexp with a tail of pointwise functions on its result."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x):
        x = torch.logsumexp(self.linear(x), dim=1, keepdim=True)
        x = F.leaky_relu(F.leaky_relu(x, 0.01), 0.01)
        return F.gelu(F.gelu(x))


batch_size = 20
in_features = 30
out_features = 4001
EXPECTED = {"kernels": 1, "aten": ["linear"]}


def get_inputs():
    return [torch.randn(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features]
