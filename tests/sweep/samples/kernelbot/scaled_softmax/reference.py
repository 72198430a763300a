"""A task in KernelBot's form: a softmax of scaled rows."""

import torch
from task import input_t, output_t
from utils import match_reference


def ref_kernel(data: input_t) -> output_t:
    x, scale = data
    return torch.softmax(x * scale, dim=-1)


def generate_input(rows: int, columns: int, seed: int) -> input_t:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device=device)
    generator.manual_seed(seed)
    x = torch.randn(rows, columns, device=device, generator=generator)
    scale = torch.rand(columns, device=device, generator=generator)
    return x, scale


check_implementation = match_reference(ref_kernel)
