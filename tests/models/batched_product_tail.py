"""Two inputs multiplied per sample, and a normalised tail."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(columns))

    def forward(self, x, y):
        x = torch.bmm(x, y) + self.bias
        return x / (1e-6 + x.norm(p=1, dim=-1, keepdim=True))


batch_size = 5
rows = 7
inner = 6
columns = 19


def get_inputs():
    return [torch.randn(batch_size, rows, inner), torch.randn(batch_size, inner, columns)]


def get_init_inputs():
    return [columns]
