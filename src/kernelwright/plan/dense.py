"""A copy is a value: what a step needs dense is stored so by whoever makes it.

    copies  a Plan -> the views that emitted code would copy in secret: operands of products and of
            kernels that are not read as they lie
    dense   the primitives and these views -> the same with each of them stored: a map that computes
            nothing, so that the kernel which makes the value stores it in the order that the reader
            wants, or else a kernel of its own that the plan shows with its bytes

A view is stored as far below as its readers still find what they want: heads that are slices of one
permuted projection are one copy, if all of it is read. ATen's other operators take any strides, so
for them only a reshape that is a copy is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from kernelwright.expr import load
from kernelwright.graph import STORED, Contraction, Graph, Node, Ref, fresh_name, hint
from kernelwright.plan.model import Plan, Region
from kernelwright.strides import Copied, lying

Readable = Callable[[torch.Tensor], bool]


@dataclass(frozen=True)
class Copy:
    """A view that a step copies, since it cannot read it as it lies."""

    view: str
    readable: Readable


def copies(plan: Plan) -> tuple[Copy, ...]:
    """Every view that is copied, in running order."""
    found: dict[str, Copy] = {}
    for region in plan.regions:
        for copy in _asked(region):
            if copy.view not in found and not _served(plan.graph, copy):
                found[copy.view] = copy
    return tuple(found.values())


def dense(graph: Graph, wanted: tuple[Copy, ...]) -> Graph:
    """The graph with these views stored, each where most of them are served; itself: none can be.

    A stored view keeps its name, so that all who read it read what is stored.
    """
    shown = _shown(graph)
    places = {copy.view: _places(graph, copy, shown) for copy in wanted}
    stored = {place for copy in wanted if (place := _place(graph, copy, wanted, places))}
    nodes, taken = list[Node](), set(graph.by_name)
    for node in graph:
        if node.name in stored:
            node, view = _stored(node, fresh_name(f"{node.name}_lying", taken)), node
            nodes.append(replace(view, name=node.inputs[0]))
        nodes.append(node)
    return graph.with_nodes(nodes) if stored else graph


def copied_by_library(graph: Graph, product: Node, operand: str) -> bool:
    """Whether the library's product would copy one of its operands."""
    assert isinstance(product.payload, Contraction)
    readable = _library(product.payload)
    return readable is not None and not _served(graph, Copy(operand, readable))


def is_copied(graph: Graph, name: str) -> bool:
    """Whether all that reads a value is, through views, one map that only stores it in an order."""
    while len(graph.users[name]) == 1 and name not in graph.results:
        name = graph.users[name][0]
        if graph[name].op != "view":
            return graph[name].payload == load(0) and graph[name].op == "map"
    return False


# ---- who reads what ------------------------------------------------------------------------------


def _asked(region: Region) -> Iterator[Copy]:
    """What a step reads, and how it must lie."""
    if region.gemm is not None or region.program is not None:
        yield from (Copy(name, torch.Tensor.is_contiguous) for name in region.reads)
    elif region.contraction is not None:
        readable = _library(region.contraction)
        if readable is not None:
            yield from (Copy(name, readable) for name in region.operands)
    else:
        yield from (Copy(name, _any_strides) for name in region.reads)


def _library(contraction: Contraction) -> Readable | None:
    """What the library does not copy of a product's operands; None: nobody knows."""
    if not contraction.by_strides:
        return None
    one_matrix = min(len(contraction.left), len(contraction.right)) <= 2
    return _as_rows if one_matrix else _as_matrices


def _any_strides(tensor: torch.Tensor) -> bool:
    """What ATen's other operators read; a reshape that is a copy lies in no strides at all."""
    return True


def _as_matrices(tensor: torch.Tensor) -> bool:
    """Whether a batch of matrices has one stride, and each of them rows or columns in memory."""
    if tensor.dim() < 2:
        return True
    *batch, rows, columns = tensor.shape
    try:
        _, down, along = tensor.view(math.prod(batch), rows, columns).stride()
    except RuntimeError:  # torch's word for: these axes are not one
        return False
    by_rows = (along == 1 or columns == 1) and down >= columns
    by_columns = (down == 1 or rows == 1) and along >= rows
    return by_rows or by_columns


def _as_rows(tensor: torch.Tensor) -> bool:
    """Whether all axes but the last are the rows of one matrix; a matrix itself may be turned."""
    if tensor.dim() <= 2:
        return _as_matrices(tensor)
    try:
        return _as_matrices(tensor.view(math.prod(tensor.shape[:-1]), tensor.shape[-1]))
    except RuntimeError:
        return False


def is_dense(graph: Graph, name: str) -> bool:
    """Whether a kernel can read a value as it lies."""
    return _served(graph, Copy(name, torch.Tensor.is_contiguous))


# ---- where it is stored --------------------------------------------------------------------------


def _served(graph: Graph, copy: Copy, stored: str = "") -> bool:
    """Whether the reader takes the value as it lies, over its base or a view that is `stored`."""
    if graph[copy.view].op != "view":
        return True
    try:
        return copy.readable(lying(graph, copy.view, stored, copies=False))
    except Copied:
        return False


def _places(graph: Graph, copy: Copy, shown: set[str]) -> list[str]:
    """The views below this one, from itself down, that serve the reader if they are stored."""
    found, name = [], copy.view
    while graph[name].op == "view":
        able = name not in shown and graph[name].type.dtype in STORED
        if able and _served(graph, copy, name):
            found.append(name)
        name = graph[name].inputs[0]
    return found


def _place(
    graph: Graph, copy: Copy, wanted: tuple[Copy, ...], places: dict[str, list[str]]
) -> str | None:
    """The lowest of them that is wanted whole."""
    for place in reversed(places[copy.view]):
        parts = {graph.regrouped(c.view) for c in wanted if place in places[c.view]}
        if sum(hint(graph[p].type.numel) for p in parts) >= hint(graph[place].type.numel):
            return place
    return None


def _shown(graph: Graph) -> set[str]:
    """Views whose memory the caller sees, which must lie as eager's."""
    found = set[str]()
    for name in graph.results:
        while graph[name].op == "view":
            found.add(name)
            name = graph[name].inputs[0]
    return found


def _stored(view: Node, name: str) -> Node:
    return replace(view, op="map", args=(Ref(name),), payload=load(0))
