"""Scattering along an axis, one place for each row: a comparison of places with the row's index.

In: scatter and scatter_add of an index that has one place along the axis, as the gradients of max,
min and gather along it are. Out: a map, which whoever reads it computes. An index outside of the
axis gives NaN, where eager stops the program. Scatters of several places, whose order matters where
they meet, stay with ATen, and so do the gradients of embeddings.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from kernelwright.expand.builder import FLOATS, Builder, Lowering
from kernelwright.expand.pointwise import MOST_PLACES
from kernelwright.expr import Expr, call, const, index, load
from kernelwright.graph import Node


def _scatter(combine: Callable[[Expr, Expr], Expr]) -> Lowering:
    """(x, dim, index, source): `combine` makes what stands there of x and the source."""

    def lower(builder: Builder, node: Node) -> str | None:
        value, dim, places, source = node.args[:4]
        shape = node.type.shape
        if not shape or not builder.floating(value.name):
            return None
        axis = dim % len(shape)
        operands, new = [value.name], const(source) if isinstance(source, int | float) else load(2)
        if new.op == "load":
            operands.append(source.name)
        if any(builder.shape(n) != _single(shape, axis) for n in (places.name, *operands[1:])):
            return None
        return _placed(builder, node, axis, places.name, operands, combine(load(1), new))

    return lower


def _placed(
    builder: Builder, node: Node, axis: int, places: str, operands: list[str], new: Expr
) -> str | None:
    """`new` where a row's index says; load(0) is that, load(1) what stands everywhere else."""
    extent = node.type.shape[axis]
    known = isinstance(extent, int) and 0 < extent <= MOST_PLACES
    if not known or node.type.dtype not in FLOATS or builder.type(places).dtype != torch.int64:
        return None
    old = load(1) if operands else const(0.0)
    there = call("where", call("eq", index(axis), load(0)), new, old)
    inside = call("mul", call("ge", load(0), 0.0), call("lt", load(0), float(str(extent))))
    expr = call("where", inside, there, float("nan"))
    wide = builder.view("expand", places, node.type.shape, label="places")
    return builder.map(expr, [wide, *operands], node.type)


def _single(shape: tuple[object, ...], axis: int) -> tuple[object, ...]:
    return (*shape[:axis], 1, *shape[axis + 1 :])


LOWERINGS: dict[str, Lowering] = {
    "scatter.src": _scatter(lambda old, new: new),
    "scatter.value": _scatter(lambda old, new: new),
    "scatter_add": _scatter(lambda old, new: call("add", old, new)),
}
