"""How a view of dense memory lies, as torch makes it.

In: a Graph and the name of a view. Out: a tensor without memory that has its strides. Reshapes that
no strides can express are copies in torch; whoever has to know can ask. What ATen computes lies as
ATen lays it on that device, which a call on fake tensors tells.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from kernelwright.fakes import goes_by_place, layouts
from kernelwright.graph import Call, Graph, Node, Payload, Ref, View, as_dim, hint
from kernelwright.interpret import carry_out, resolve
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


def as_seen(graph: Graph) -> Graph:
    """The graph with numbers for its sizes: those of the call whose strides its contract holds."""
    seen = dict(graph.contract.sizes)

    @cache
    def size(dim: sympy.Expr) -> int:
        return hint(as_dim(dim.subs({s: seen.get(str(s), s) for s in dim.free_symbols})))

    def number(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)(number(v) for v in value)
        return size(value) if isinstance(value, sympy.Expr) else value

    def payload(of: Payload) -> Payload:
        if isinstance(of, View):
            return replace(of, start=number(of.start))
        if isinstance(of, Call):
            return replace(of, args=number(of.args), kwargs=number(of.kwargs))
        return of

    nodes = [
        replace(n, type=replace(n.type, shape=number(n.type.shape)), payload=payload(n.payload))
        for n in graph
    ]
    return replace(graph, nodes=tuple(nodes))


@contextlib.contextmanager
def on_fakes() -> Iterator[None]:
    """In here `handed_out` and `stored` make tensors that lie as eager's do, without memory."""
    with FakeTensorMode(allow_non_fake_inputs=True), layouts():
        yield


def placed(graph: Graph) -> dict[str, tuple[tuple[int, ...], ...]]:
    """How operands lie in eager, for calls of a captured graph whose values depend on that."""
    calls = [
        node
        for node in graph
        if node.inputs
        and isinstance(call := node.payload, Call)
        and call.target != "getitem"
        and goes_by_place(resolve(call.target), call.args, dict(call.kwargs))
    ]
    if not calls:
        return {}
    seen, known = as_seen(graph), dict[str, Any]()
    with on_fakes():
        for node in seen:
            known[node.name] = _handed_out(seen, node, known)
    return {node.name: tuple(known[name].stride() for name in node.inputs) for node in calls}


def given_rows(graph: Graph, node: Node) -> bool:
    """Whether such a call is given nothing but what lies row by row in eager."""
    wanted, seen = graph.contract.placed.get(node.name), as_seen(graph).by_name
    shapes = [seen[name].type.shape for name in node.inputs]
    if wanted is None or list(map(len, wanted)) != list(map(len, shapes)):
        return False
    pairs = zip(shapes, wanted, strict=True)
    return all(torch.empty_strided(*of, device="meta").is_contiguous() for of in pairs)


def stored(graph: Graph, node: Node) -> torch.Tensor:
    """The value, row by row."""
    sizes, device = [hint(d) for d in node.type.shape], graph.contract.device
    return torch.empty(sizes, dtype=node.type.dtype, device=device)


def handed_out(graph: Graph, name: str, known: dict[str, Any]) -> torch.Tensor:
    """The value as emitted code has it: kernels store row by row, calls to ATen as those do.

    `known` tells how some values lie, and is told of the others.
    """

    def opened(name: str) -> Opened[str, Any]:
        node = graph[name]
        parts = node.inputs if node.op in ("view", "opaque") else ()
        return parts, lambda found: _handed_out(graph, node, dict(zip(parts, found, strict=True)))

    made: torch.Tensor = fold(name, opened, known)
    return made


def _handed_out(graph: Graph, node: Node, operands: Mapping[str, Any]) -> Any:
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
    return stored(graph, node)


def shares_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(one.untyped_storage()._cdata == other.untyped_storage()._cdata)


def _numbers(value: Any, inner: torch.Tensor) -> Any:
    if isinstance(value, Ref):
        return inner
    if isinstance(value, tuple):
        return tuple(_numbers(v, inner) for v in value)
    return hint(value) if hasattr(value, "free_symbols") else value
