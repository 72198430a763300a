"""Feature maps joined along the channels, normalised in groups that no part cuts."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3, padding=1)
        self.norm = nn.GroupNorm(3, 12)

    def forward(self, x):
        return torch.relu(self.norm(torch.cat([self.conv(x), x], dim=1)))


batch_size = 3
EXPECTED = {"kernels": 1, "aten": ["conv2d"]}


def get_inputs():
    return [torch.randn(batch_size, 4, 5, 6)]


def get_init_inputs():
    return []
