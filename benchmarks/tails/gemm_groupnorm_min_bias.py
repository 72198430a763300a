"""gemm_groupnorm_min_bias after the product: GroupNorm, min over features, a bias."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features, num_groups, bias_shape):
        super().__init__()
        self.group_norm = nn.GroupNorm(num_groups, features)
        self.bias = nn.Parameter(torch.randn(bias_shape))

    def forward(self, product):
        x = self.group_norm(product)
        smallest = torch.min(x, dim=1, keepdim=True)[0]
        return smallest + self.bias


batch_size = 1024
features = 8192


def get_inputs():
    return [torch.randn(batch_size, features)]


def get_init_inputs():
    return [features, 512, (1, features, 1, 1)]
