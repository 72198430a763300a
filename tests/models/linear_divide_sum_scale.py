"""Linear without a bias, divided, summed over the features, scaled."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features, bias=False)

    def forward(self, x):
        x = self.linear(x) / 2
        return torch.sum(x, dim=1, keepdim=True) * 1.5


batch_size = 19
in_features = 48
out_features = 65
EXPECTED = {"kernels": 2, "aten": []}


def get_inputs():
    return [torch.randn(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features]
