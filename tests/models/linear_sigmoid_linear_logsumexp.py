"""Two layers; each tail follows its own contraction."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, in_features, out_features, last_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.second = nn.Linear(out_features, last_features)

    def forward(self, x):
        x = torch.sigmoid(self.linear(x))
        return torch.logsumexp(self.second(x), dim=1)


batch_size = 20
in_features = 30
out_features = 41
last_features = 77
EXPECTED = {"kernels": 2, "aten": ["linear", "linear"]}


def get_inputs():
    return [torch.randn(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features, last_features]
