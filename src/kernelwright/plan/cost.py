"""Estimates: the bytes a region must move, the operations it does. Explained, never hidden."""

from __future__ import annotations

from kernelwright.graph import Call, Dim, Graph, Node, as_dim, product
from kernelwright.plan.model import Program


def program_bytes(graph: Graph, program: Program) -> Dim:
    """Each buffer read or written once, counting only the elements that are touched."""
    total: Dim = 0
    accesses = {a.buffer: a for a in [*program.loads, *(s.access for s in program.stores)]}
    for access in accesses.values():
        touched = product([program.sizes[a] for a in access.atoms])
        total = as_dim(total + touched * graph[access.buffer].type.dtype.itemsize)
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
