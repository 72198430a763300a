"""Estimates: the bytes a region must move, the operations it does. Explained, never hidden."""

from __future__ import annotations

from kernelwright.graph import Dim, Graph, Node, as_dim, hint, product
from kernelwright.plan.model import Program


def program_bytes(graph: Graph, program: Program) -> Dim:
    """Each part of a buffer read or written once, counting only the elements that are touched."""
    total: Dim = 0
    parts = {(a.buffer, a.offset, bool(a.within)): a for a in program.accesses}
    for access in parts.values():
        type = graph[access.buffer].type
        touched = product([program.sizes[a] for a in access.atoms])
        overlaps = hint(touched) > hint(type.numel)  # windows read what their neighbours read
        elements = type.numel if access.within or overlaps else touched
        total = as_dim(total + elements * type.dtype.itemsize)
    return total


def call_bytes(graph: Graph, node: Node) -> Dim:
    total: Dim = as_dim(node.type.numel * node.type.dtype.itemsize)
    for name in dict.fromkeys(node.inputs):
        type = graph[name].type
        total = as_dim(total + type.numel * type.dtype.itemsize)
    return total
