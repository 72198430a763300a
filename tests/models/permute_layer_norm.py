"""LayerNorm over channels that are brought to the end."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, x):
        return self.norm(x.permute(0, 2, 3, 1))


batch_size = 3
channels = 12
EXPECTED = {"kernels": 1, "aten": []}


def get_inputs():
    return [torch.randn(batch_size, channels, 5, 6)]


def get_init_inputs():
    return [channels]
