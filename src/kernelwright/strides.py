"""How a view of dense memory lies, as torch makes it.

In: a Graph and the name of a view. Out: a tensor without memory that has its strides. Reshapes that
no strides can express are copies in torch; whoever has to know can ask. What ATen computes lies as
ATen lays it, which a call without memory tells.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch

from kernelwright.graph import Graph, Node, Ref, hint
from kernelwright.interpret import carry_out
from kernelwright.walk import Opened, fold


class Copied(Exception):
    """A reshape on the way is a copy."""


def lying(graph: Graph, name: str, dense: str = "", copies: bool = True) -> torch.Tensor:
    """The value as a view of its base, or of `dense`, that lies row by row.

    Without `copies` a reshape that would be one raises Copied.
    """
    node = graph[name]
    if node.op != "view" or name == dense:
        return torch.empty([hint(d) for d in node.type.shape], device="meta")
    inner = lying(graph, node.inputs[0], dense, copies)
    made: torch.Tensor = carry_out(node, lambda v: _numbers(v, inner))
    if not copies and not shares_memory(made, inner):
        raise Copied
    return made


def handed_out(graph: Graph, name: str, known: dict[str, Any]) -> torch.Tensor:
    """The value as emitted code has it: kernels store row by row, calls to ATen as those do.

    `known` tells how some values lie, and is told of the others.
    """

    def opened(name: str) -> Opened[str, Any]:
        node = graph[name]
        parts = node.inputs if node.op in ("view", "opaque") else ()
        return parts, lambda found: _handed_out(node, dict(zip(parts, found, strict=True)))

    made: torch.Tensor = fold(name, opened, known)
    return made


def _handed_out(node: Node, operands: Mapping[str, Any]) -> Any:
    """What a view or a call gives of operands that lie so; a call, one or several tensors."""

    def look(value: Any) -> Any:
        if isinstance(value, Ref):
            return operands[value.name]
        if isinstance(value, tuple | list):
            return type(value)(look(v) for v in value)
        return hint(value) if hasattr(value, "free_symbols") else value

    with contextlib.suppress(Exception):  # whatever a call raises that needs the numbers themselves
        if operands:
            return carry_out(node, look)
    return torch.empty([hint(d) for d in node.type.shape], dtype=node.type.dtype, device="meta")


def shares_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(one.untyped_storage()._cdata == other.untyped_storage()._cdata)


def _numbers(value: Any, inner: torch.Tensor) -> Any:
    if isinstance(value, Ref):
        return inner
    if isinstance(value, tuple):
        return tuple(_numbers(v, inner) for v in value)
    return hint(value) if hasattr(value, "free_symbols") else value
