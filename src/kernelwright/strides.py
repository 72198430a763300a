"""How a view of dense memory lies, as torch makes it.

In: a Graph and the name of a view. Out: a tensor without memory that has its strides. Reshapes that
no strides can express are copies in torch; whoever has to know can ask.
"""

from __future__ import annotations

from typing import Any

import torch

from kernelwright.graph import Graph, Ref, hint
from kernelwright.interpret import carry_out


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


def shares_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(one.untyped_storage()._cdata == other.untyped_storage()._cdata)


def _numbers(value: Any, inner: torch.Tensor) -> Any:
    if isinstance(value, Ref):
        return inner
    if isinstance(value, tuple):
        return tuple(_numbers(v, inner) for v in value)
    return hint(value) if hasattr(value, "free_symbols") else value
