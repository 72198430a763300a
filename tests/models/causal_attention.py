"""torch's own attention, causal, over heads of one projection, and what follows it."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x):
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).split(width, dim=2)
        q, k, v = (t.view(batch, tokens, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return torch.tanh(mixed.transpose(1, 2).reshape(batch, tokens, width))


batch_size = 4
width = 32
heads = 2
tokens = 11


def get_inputs():
    return [torch.randn(batch_size, tokens, width)]


def get_init_inputs():
    return [width, heads]
