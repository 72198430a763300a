"""An element that .item() reads is an operand like any other tensor."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        largest = x.abs().max()
        return x / (largest.item() + 1.0), torch.cumsum(x, dim=1) * x[0, 0].item()


batch_size = 6


def get_inputs():
    return [torch.randn(batch_size, 11)]


def get_init_inputs():
    return []
