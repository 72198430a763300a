"""Attention of windows: a packed projection, a bias for each pair of places, and a mask."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width, heads, tokens):
        super().__init__()
        self.heads = heads
        self.scale = (width // heads) ** -0.5
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.bias = nn.Parameter(torch.randn(heads, tokens, tokens))
        self.register_buffer("mask", torch.full((tokens, tokens), -100.0).triu(1))

    def forward(self, x):
        count, tokens, width = x.shape
        qkv = self.qkv(x).reshape(count, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        scores = q * self.scale @ k.transpose(-2, -1) + self.bias + self.mask
        mixed = scores.softmax(dim=-1) @ v
        return self.proj(mixed.transpose(1, 2).reshape(count, tokens, width))


batch_size = 4
width = 48
heads = 3
tokens = 9


def get_inputs():
    return [torch.randn(batch_size, tokens, width)]


def get_init_inputs():
    return [width, heads, tokens]
