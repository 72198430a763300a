"""matmul_groupnorm_leakyrelu_sum after the product: GroupNorm, LeakyReLU, x + x."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features, num_groups, eps=1e-5, negative_slope=0.01):
        super().__init__()
        self.norm = nn.GroupNorm(num_groups, features, eps=eps)
        self.activation = nn.LeakyReLU(negative_slope)

    def forward(self, product):
        x = self.activation(self.norm(product))
        return x + x


batch_size = 1024
features = 8192


def get_inputs():
    return [torch.randn(batch_size, features)]


def get_init_inputs():
    return [features, 512]
