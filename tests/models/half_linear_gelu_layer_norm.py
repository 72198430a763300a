"""float16 storage around a contraction: GELU and LayerNorm."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.norm = nn.LayerNorm(out_features)
        self.half()

    def forward(self, x):
        return self.norm(F.gelu(self.linear(x)))


batch_size = 14
in_features = 64
out_features = 72
EXPECTED = {"kernels": 1, "aten": ["linear"]}


def get_inputs():
    return [torch.randn(batch_size, in_features).half()]


def get_init_inputs():
    return [in_features, out_features]
