"""A reduction of another reduction's result, over the axis that was left."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        sums = torch.sum(x * x, dim=2)
        return torch.amax(sums, dim=1), torch.mean(sums, dim=0)


batch_size = 9
length = 14
features = 15


def get_inputs():
    return [torch.randn(batch_size, length, features)]


def get_init_inputs():
    return []
