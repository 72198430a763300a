"""Sizes as numbers: divided by, and with roots taken of them."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        mean = x.sum(0) / x.shape[0]
        return (x - mean) * x.shape[0] ** -0.5 + 1 / (x.shape[0] + 1), x.shape[1] / (
            x.shape[0] + x * x
        )


batch_size = 6


def get_inputs():
    return [torch.randn(batch_size, 11)]


def get_init_inputs():
    return []
