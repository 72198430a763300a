"""A loss lies as the target does, whatever it is computed in."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 5


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.to(torch.bfloat16)

    def forward(self, x0):
        v0 = x0.amax()
        v1 = F.smooth_l1_loss(v0, x0, reduction="none")
        return v1


def get_inputs():
    return [
        torch.randn(batch, 6, dtype=torch.bfloat16),
    ]


def get_init_inputs():
    return []
