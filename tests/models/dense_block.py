"""Each layer sees all that came before it: what a Linear needs is joined in one kernel."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(24, 16)
        self.second = nn.Linear(40, 8)

    def forward(self, x):
        x = torch.cat([x, torch.relu(self.first(x))], dim=1)
        x = torch.cat([x, torch.relu(self.second(x))], dim=1)
        return x.amax(dim=1)


batch_size = 6
EXPECTED = {"kernels": 2, "aten": ["linear", "linear"]}


def get_inputs():
    return [torch.randn(batch_size, 24)]


def get_init_inputs():
    return []
