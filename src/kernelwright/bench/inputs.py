"""Several sets of inputs to rotate among, so that no call finds its data where the last left it.

Each set holds other rows of the file's own example inputs: the values keep their distribution (and
indices their range) while every address and every row's content changes from call to call. A set
can be refilled in place, as a number decides, so that no timed call finds inputs of an earlier one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kernelwright.bench.roofline import distinct_bytes
from kernelwright.errors import InputError
from kernelwright.verify.inputs import Inputs, map_tensors, tensors_in

MAX_SETS = 8
MAX_BYTES = 1 << 30

ENOUGH_ROWS = 64  # from which on there are endless ways to choose some

InputSets = list[Inputs]


def make_sets(
    args: Sequence[Any],
    batch: int | None,
    cache_bytes: int,
    kwargs: Mapping[str, Any] | None = None,
) -> InputSets:
    """As many sets as overflow the cache, at least two, and at most 1 GB of them."""
    inputs = Inputs(tuple(args), dict(kwargs or {}))
    rows = leading_size(inputs)
    if batch is not None and batch < 1:
        raise InputError(f"The batch to time must be at least 1, but it is {batch}.")
    if batch is not None and rows is None:
        raise InputError("The example inputs have no batch dimension, so --batch cannot be used.")
    count = batch or rows or 1
    size = sum(distinct_bytes(t) for t in tensors_in(inputs)) * count // max(rows or 1, 1)
    wanted = -(-cache_bytes // max(size, 1))
    number = max(2, min(wanted, MAX_SETS, MAX_BYTES // max(size, 1)))
    step = max(1, min(count, (rows or 1) // number))
    return [_picked(inputs, rows, k * step, count) for k in range(number)]


def refill(
    place: Inputs,
    source: Inputs,
    number: int,
    row: int | None = None,
    chosen: torch.Tensor | None = None,
) -> None:
    """Other content in the same memory: rows of the source, or in one `row` alone another one.

    Where there are few rows to choose from, floating values become a little smaller too. `chosen`
    is the choice of that number, if it was made before: nothing here waits for a GPU then.
    """
    rows = leading_size(source) or 0
    factor = 1.0 if rows >= ENOUGH_ROWS else 1.0 - (number % 2**16) / 2**20
    if chosen is None:
        chosen = choice(place, source, number)
    part = slice(None) if row is None else slice(row, row + 1)
    for into, of in zip(tensors_in(place), tensors_in(source), strict=True):
        if rows and of.dim() and of.shape[0] == rows:
            into.data[part].copy_(_scaled(of.index_select(0, chosen[part]), factor))
        else:
            into.data.copy_(_scaled(of, factor))


def choice(place: Inputs, source: Inputs, number: int) -> torch.Tensor:
    """Which rows of the source a number gives a set; all inputs of a row stay together."""
    rows, count = leading_size(source) or 1, leading_size(place) or 1
    chance = torch.Generator().manual_seed(number)
    made = torch.randint(rows, (count,), generator=chance)
    return made.to(tensors_in(source)[0].device)


def _scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor if factor != 1.0 and x.is_floating_point() else x


def leading_size(inputs: Inputs) -> int | None:
    """The size of the first tensor's first dimension, which is taken for the batch."""
    first = tensors_in(inputs)[0]
    return first.shape[0] if first.dim() else None


def _picked(inputs: Inputs, rows: int | None, start: int, count: int) -> Inputs:
    return map_tensors(lambda x: _pick(x, rows, start, count), inputs)


def _pick(value: torch.Tensor, rows: int | None, start: int, count: int) -> torch.Tensor:
    if not rows or not value.dim() or value.shape[0] != rows:
        return value.clone()
    index = (torch.arange(count, device=value.device) + start) % rows
    picked = value.index_select(0, index)
    return torch.empty_like(value).copy_(picked) if count == rows else picked
