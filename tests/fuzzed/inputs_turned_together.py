"""Inputs that lie the other way round: with one alone, eager takes over the order of neither."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 5


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.to(torch.float16)

    def forward(self, x0, x1):
        v1 = torch.where(x1, x0, x0)
        v2 = v1.select(3, 5)
        v5 = F.normalize(v2, dim=-1)
        return v5


def get_inputs():
    return [
        torch.randn(batch, 3, 1, 12, dtype=torch.float16),
        torch.randint(0, 2, (batch, 1, 1, 12,)).bool(),
    ]


def get_init_inputs():
    return []
