"""gemm_bias_hardtanh_mish_groupnorm after the product: bias, Hardtanh, Mish, GroupNorm."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features, num_groups):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(features))
        self.hardtanh = nn.Hardtanh()
        self.mish = nn.Mish()
        self.group_norm = nn.GroupNorm(num_groups, features)

    def forward(self, product):
        x = product + self.bias
        x = self.mish(self.hardtanh(x))
        return self.group_norm(x)


batch_size = 1024
features = 8192


def get_inputs():
    return [torch.randn(batch_size, features)]


def get_init_inputs():
    return [features, 256]
