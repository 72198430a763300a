"""What replacements are made of: ordinary operators whose types follow from their operands.

In: a Builder and values. Out: values. Axes that a reduction goes over stay, with size one, so that
what follows may count them as before; `view` drops them at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from kernelwright.graph import Dim, Ref, Shape, TensorType, broadcast
from kernelwright.pattern import Builder

FULL_DTYPE = {"sum.dim_IntList", "mean.dim"}


def view(builder: Builder, x: Ref, shape: Shape) -> Ref:
    """x in another shape."""
    type = builder.type(x)
    return (
        x if type.shape == shape else builder.node("view", (x, shape), replace(type, shape=shape))
    )


def over(builder: Builder, op: str, x: Ref, axes: Sequence[int]) -> Ref:
    """A reduction that keeps its axes; over none it is x."""
    if not axes:
        return x
    type = builder.type(x)
    shape = tuple(1 if axis in axes else size for axis, size in enumerate(type.shape))
    options = (None,) if op in FULL_DTYPE else ()
    return builder.node(op, (x, tuple(axes), True, *options), replace(type, shape=shape))


def mul(builder: Builder, x: Ref, y: Ref | float) -> Ref:
    return builder.node("mul", (x, y), _together(builder, x, y))


def add(builder: Builder, x: Ref, y: Ref | float) -> Ref:
    return builder.node("add", (x, y, 1), _together(builder, x, y))


def sub(builder: Builder, x: Ref, y: Ref | float) -> Ref:
    return builder.node("sub", (x, y, 1), _together(builder, x, y))


def cast(builder: Builder, x: Ref, dtype: torch.dtype) -> Ref:
    args = (x, dtype, None, None, None, False, None)
    return builder.node("_to_copy", args, replace(builder.type(x), dtype=dtype))


def where_infinite(builder: Builder, x: Ref, then: Ref, otherwise: Ref) -> Ref:
    """`then` where x is infinite, else `otherwise`."""
    size = builder.node("abs", (x,), builder.type(x))
    truth = replace(builder.type(x), dtype=torch.bool)
    is_infinite = builder.node("eq", (size, math.inf), truth)
    type = _together(builder, then, otherwise)
    return builder.node("where", (is_infinite, then, otherwise), type)


def part(builder: Builder, x: Ref, axis: int, start: int, count: int, step: int = 1) -> Ref:
    """Every `step`th place of an axis, `count` of them from `start` on."""
    type = builder.type(x)
    if (start, count, step) == (0, type.shape[axis], 1):
        return x
    end = start + (count - 1) * step + 1
    args = (x, axis, start, end, step)
    return builder.node("slice", args, replace(type, shape=_with_size(type.shape, axis, count)))


def joined(builder: Builder, parts: Sequence[Ref], axis: int) -> Ref:
    """Values one after the other, each of size one along the axis."""
    if len(parts) == 1:
        return parts[0]
    type = builder.type(parts[0])
    shape = _with_size(type.shape, axis, len(parts))
    return builder.node("cat", (tuple(parts), axis), replace(type, shape=shape))


def _with_size(shape: Shape, axis: int, size: Dim) -> Shape:
    return (*shape[:axis], size, *shape[axis + 1 :])


def _together(builder: Builder, x: Ref, y: Ref | float) -> TensorType:
    type = builder.type(x)
    if not isinstance(y, Ref):
        return type
    shape = broadcast(type.shape, builder.type(y).shape)
    assert shape is not None
    return replace(type, shape=shape)
