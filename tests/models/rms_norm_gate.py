"""RMSNorm with a sigmoid gate from the same input."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.RMSNorm(features)

    def forward(self, x):
        return self.norm(x) * torch.sigmoid(x)


batch_size = 6
length = 10
features = 32


def get_inputs():
    return [torch.randn(batch_size, length, features)]


def get_init_inputs():
    return [features]


EXPECTED = {"kernels": 1, "aten": []}
