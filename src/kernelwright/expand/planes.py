"""Convolutions over one axis as ones over a plane of a single row, on a CPU.

In: a batch of lines. Out: reshapes around the same convolution in two dimensions. ATen does so on a
CPU too, but copies what has its channels last before it does; a plane may have them last.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kernelwright.expand import contractions
from kernelwright.expand.builder import Builder, Lowering
from kernelwright.graph import Call, Node, Ref, Shape, TensorType

LINES = 3  # dimensions of a batch of them
OPERANDS = 3  # x, W, bias
# What each of the options is along an axis of one element; groups have none.
DENSE = (1, 0, 1, None)
TRANSPOSED = (1, 0, 0, None, 1)


def _in_a_plane(line: str, plane: str, overload: str, neutral: tuple[int | None, ...]) -> Lowering:
    call = f"torch.ops.aten.{plane.partition('.')[0]}.{overload}"

    def lower(builder: Builder, node: Node) -> str | None:
        x, w, bias = node.args[:OPERANDS]
        if len(builder.shape(x.name)) != LINES or not builder.floating(x.name, w.name):
            return contractions.LOWERINGS[line](builder, node)
        flat = (_plane(builder, x.name), _plane(builder, w.name))
        options = map(_along_both, node.args[OPERANDS:], neutral)
        args = (*map(Ref, flat), bias, *options)
        type = TensorType(_wide(node.type.shape), node.type.dtype)
        own = replace(node, args=args, type=type, payload=Call(call, args))
        value = builder.instead(own, contractions.LOWERINGS[plane], label="plane")
        return builder.view("reshape", value, node.type.shape) if value is not None else None

    return lower


def _plane(builder: Builder, value: str) -> str:
    return builder.view("reshape", value, _wide(builder.shape(value)), label="plane")


def _wide(shape: Shape) -> Shape:
    return (*shape[:-1], 1, shape[-1])


def _along_both(option: Any, neutral: int | None) -> Any:
    """`same` and `valid` hold for an axis of one element too."""
    if neutral is None or isinstance(option, str):
        return option
    return (neutral, *(option if isinstance(option, tuple | list) else (option,)))


def _convolution(builder: Builder, node: Node) -> str | None:
    """An operator that may have one axis of space or several."""
    named = contractions.by_name(node)
    return (contractions.LOWERINGS | LOWERINGS)[named.op](builder, named)


LOWERINGS: dict[str, Lowering] = {
    "convolution": _convolution,
    "conv1d": _in_a_plane("conv1d", "conv2d", "default", DENSE),
    "conv1d.padding": _in_a_plane("conv1d.padding", "conv2d.padding", "padding", DENSE),
    "conv_transpose1d": _in_a_plane("conv_transpose1d", "conv_transpose2d", "input", TRANSPOSED),
}
