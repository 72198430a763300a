"""LayerNorm over the last two axes."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, length, features):
        super().__init__()
        self.norm = nn.LayerNorm((length, features))

    def forward(self, x):
        return torch.relu(self.norm(x))


batch_size = 5
length = 7
features = 36
EXPECTED = {"kernels": 1, "aten": []}


def get_inputs():
    return [torch.randn(batch_size, length, features)]


def get_init_inputs():
    return [length, features]
