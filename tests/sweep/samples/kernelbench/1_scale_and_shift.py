"""A problem in KernelBench's form: sizes at the top, a Model, and makers of its arguments."""

import torch
import torch.nn as nn

rows = 48
features = 96


class Model(nn.Module):
    """Rows scaled and shifted by parameters, through a hyperbolic tangent."""

    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 2.0, width))
        self.shift = nn.Parameter(torch.linspace(-1.0, 1.0, width))

    def forward(self, x):
        return torch.tanh(x * self.scale + self.shift)


def get_inputs():
    return [torch.randn(rows, features)]


def get_init_inputs():
    return [features]
