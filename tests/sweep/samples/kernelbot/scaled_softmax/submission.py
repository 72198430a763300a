"""The template that a task hands out: the reference by hand."""

import torch
from task import input_t, output_t


def custom_kernel(data: input_t) -> output_t:
    x, scale = data
    scaled = x * scale
    grown = torch.exp(scaled - scaled.amax(dim=-1, keepdim=True))
    return grown / grown.sum(dim=-1, keepdim=True)
