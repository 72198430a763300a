"""Found by tests/fuzz.py, seed 101589, compiled on cpu."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 5


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.eval()
        self.to(torch.float16)

    def forward(self, x0):
        v0 = torch.diff(x0, dim=0)
        v1 = torch.vstack([v0, v0])
        v2 = torch.add(v1, v1, alpha=0.5)
        return v2


def get_inputs():
    return [
        torch.randn(batch, 6, 4, dtype=torch.float16),
    ]


def get_init_inputs():
    return []
