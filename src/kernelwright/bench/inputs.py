"""Several sets of inputs to rotate among, so that no call finds its data where the last left it.

Each set holds other rows of the file's own example inputs: the values keep their distribution (and
indices their range) while every address and every row's content changes from call to call.
"""

from __future__ import annotations

from typing import Any

import torch

from kernelwright.bench.roofline import distinct_bytes, tensors
from kernelwright.errors import InputError

MAX_SETS = 8
MAX_BYTES = 1 << 30

InputSets = list[tuple[Any, ...]]


def make_sets(inputs: tuple[Any, ...], batch: int | None, cache_bytes: int) -> InputSets:
    """As many sets as overflow the cache, at least two, and at most 1 GB of them."""
    rows = leading_size(inputs)
    if batch is not None and batch < 1:
        raise InputError(f"The batch to time must be at least 1, but it is {batch}.")
    if batch is not None and rows is None:
        raise InputError("The example inputs have no batch dimension, so --batch cannot be used.")
    count = batch or rows or 1
    size = sum(distinct_bytes(t) for t in tensors(inputs)) * count // max(rows or 1, 1)
    wanted = -(-cache_bytes // max(size, 1))
    number = max(2, min(wanted, MAX_SETS, MAX_BYTES // max(size, 1)))
    step = max(1, min(count, (rows or 1) // number))
    return [tuple(_pick(x, rows, k * step, count) for x in inputs) for k in range(number)]


def leading_size(inputs: tuple[Any, ...]) -> int | None:
    """The size of the first tensor's first dimension, which is taken for the batch."""
    first = next(x for x in inputs if isinstance(x, torch.Tensor))
    return first.shape[0] if first.dim() else None


def _pick(value: Any, rows: int | None, start: int, count: int) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if not rows or not value.dim() or value.shape[0] != rows:
        return value.clone()
    index = (torch.arange(count, device=value.device) + start) % rows
    picked = value.index_select(0, index)
    return torch.empty_like(value).copy_(picked) if count == rows else picked
