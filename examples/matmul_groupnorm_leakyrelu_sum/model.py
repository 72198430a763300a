"""Linear, GroupNorm, LeakyReLU, and the sum of the result with itself."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, in_features, out_features, num_groups, eps=1e-5, negative_slope=0.01):
        super().__init__()
        self.fc = nn.Linear(in_features, out_features)
        self.norm = nn.GroupNorm(num_groups, out_features, eps=eps)
        self.activation = nn.LeakyReLU(negative_slope)

    def forward(self, x):
        x = self.activation(self.norm(self.fc(x)))
        return x + x


batch_size = 1024
in_features = 8192
out_features = 8192
num_groups = 512


def get_inputs():
    return [torch.rand(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features, num_groups]
