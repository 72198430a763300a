"""Bounds, fills and alternatives that are infinite or NaN."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        open_end = x.clamp(min=-1.0, max=float("inf"))
        masked = torch.softmax(x.masked_fill(x > 1.5, float("-inf")), dim=-1)
        chosen = torch.where(x > 0, x, torch.tensor(float("-inf")))
        filled = x.new_full((9,), float("inf")).minimum(x)
        return (
            open_end * masked,
            torch.exp(chosen),
            filled,
            torch.maximum(x, x.new_full((), float("nan"))),
        )


batch_size = 5


def get_inputs():
    return [torch.randn(batch_size, 9)]


def get_init_inputs():
    return []
