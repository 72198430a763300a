"""Estimates: the bytes a region must move, the operations it does. Explained, never hidden."""

from __future__ import annotations

from kernelwright.graph import Call, Dim, Graph, Node, as_dim, product
from kernelwright.plan.model import Program


def program_bytes(graph: Graph, program: Program) -> Dim:
    """Each part of a buffer read or written once, counting only the elements that are touched."""
    total: Dim = 0
    parts = {(a.buffer, a.offset, bool(a.within)): a for a in program.accesses}
    for access in parts.values():
        type = graph[access.buffer].type
        touched = product([program.sizes[a] for a in access.atoms])
        elements = type.numel if access.within else touched
        total = as_dim(total + elements * type.dtype.itemsize)
    return total


def call_bytes(graph: Graph, node: Node) -> Dim:
    total: Dim = as_dim(node.type.numel * node.type.dtype.itemsize)
    for name in dict.fromkeys(node.inputs):
        type = graph[name].type
        total = as_dim(total + type.numel * type.dtype.itemsize)
    return total


def contract_flops(graph: Graph, node: Node) -> Dim:
    """Multiply-adds count twice. A transposed convolution works per input element."""
    assert isinstance(node.payload, Call)
    target = node.payload.target
    left, right = (graph[i].type for i in node.inputs[:2])
    if "conv_transpose" in target:
        return as_dim(2 * left.numel * product(right.shape[1:]))
    if "conv" in target:
        return as_dim(2 * node.type.numel * product(right.shape[1:]))
    return as_dim(2 * node.type.numel * left.shape[-1])
