"""A product scaled by a vector of two parameters, inside of its epilogue."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 128)
        self.first = nn.Parameter(torch.randn(24))
        self.second = nn.Parameter(torch.randn(104))

    def forward(self, x):
        scale = torch.cat([self.first, self.second.exp()])
        return torch.logsumexp(torch.tanh(self.linear(x)) * scale, dim=1)


batch_size = 6
EXPECTED = {"kernels": 1, "aten": ["linear"]}


def get_inputs():
    return [torch.randn(batch_size, 32)]


def get_init_inputs():
    return []
