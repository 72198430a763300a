"""Live dropout as a mask and a product: x * keep * scale, where only the mask draws numbers.

In: how large a dropped value is, its type and the rate. Out: the operator by which a graph of
primitives asks for the mask, true where an element is kept. On CUDA the mask is eager's own, bit
for bit: a kernel draws the numbers that ATen's would (kernels/dropout.cuh, runtime/dropout.py). So
the mask is a value like any other, and whatever kernel computes x multiplies by it on the way.
"""

from __future__ import annotations

import torch

from kernelwright.expr import in_float32
from kernelwright.graph import Call, Graph

TARGET = "torch.ops.kernelwright.keep_mask.default"
KERNEL = "dropout_mask"


def _keep_mask(size: list[int], dtype: torch.dtype, rate: float) -> torch.Tensor:
    """What the interpreter runs: the numbers of eager's dropout on the CPU."""
    return torch.empty(size, dtype=dtype).bernoulli_(1.0 - rate).bool()


torch.library.define(
    "kernelwright::keep_mask",
    "(SymInt[] size, ScalarType dtype, float rate) -> Tensor",
    tags=(torch.Tag.nondeterministic_seeded,),
)
torch.library.impl("kernelwright::keep_mask", "default", _keep_mask)


def is_mask(call: Call | None) -> bool:
    return call is not None and call.target == TARGET


def has_masks(graph: Graph) -> bool:
    return any(isinstance(n.payload, Call) and is_mask(n.payload) for n in graph)


def keep_and_scale(rate: float) -> tuple[float, float]:
    """The probability to be kept and what kept elements are scaled by, as ATen rounds them."""
    keep = in_float32(1.0 - rate)
    return keep, in_float32(1.0 / keep)
