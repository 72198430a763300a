"""Outputs lie in memory as eager's do: where they would not, they are stored in eager's order.

In: a Graph of primitives and, in its contract, the strides of eager's outputs. Out: a Graph in
which each such output is permuted into the order of memory, stored, and permuted back as a view.
Eager's pointwise operators keep the order of their operand, so `x.transpose(1, 2).relu()` is one.
"""

from __future__ import annotations

from dataclasses import replace

from torch.utils import _pytree as pytree

from kernelwright.expr import load
from kernelwright.graph import (
    SOURCES,
    Graph,
    Node,
    Payload,
    Ref,
    TensorType,
    View,
    fresh_name,
    map_refs,
)
from kernelwright.strides import lying

Order = tuple[int, ...]


def lay_out(graph: Graph) -> Graph:
    leaves = pytree.tree_leaves(graph.outputs)
    strides = graph.contract.strides
    if strides is None or len(strides) != len(leaves):
        return graph
    nodes, moved, taken = list(graph.nodes), dict[str, str](), set(graph.by_name)
    for leaf, wanted in zip(leaves, strides, strict=True):
        if not isinstance(leaf, Ref) or wanted is None or leaf.name in moved:
            continue
        if graph[graph.base(leaf.name)].op in SOURCES or 0 in wanted:
            continue
        node = graph[leaf.name]
        if len(wanted) != len(node.type.shape):
            continue  # the run on fake tensors took another way, as an LSTM's may
        order = _order(node, wanted)
        if order != _order(node, lying(graph, leaf.name).stride()):
            added = _stored(node, order, taken)
            moved[leaf.name] = added[-1].name
            nodes += added
    outputs = map_refs(graph.outputs, lambda ref: Ref(moved.get(ref.name, ref.name)))
    return replace(graph, outputs=outputs).with_nodes(nodes) if moved else graph


def _order(node: Node, strides: tuple[int, ...]) -> Order:
    """The axes from the one with the widest steps to the one of neighbours; ones stay in place."""
    axes = [i for i, d in enumerate(node.type.shape) if d != 1]
    ranked = iter(sorted(axes, key=lambda i: -strides[i]))
    return tuple(next(ranked) if d != 1 else i for i, d in enumerate(node.type.shape))


def _stored(node: Node, order: Order, taken: set[str]) -> list[Node]:
    """Permute, store, permute back."""
    back = tuple(order.index(i) for i in range(len(order)))
    lying = TensorType(tuple(node.type.shape[i] for i in order), node.type.dtype)
    names = [fresh_name(f"{node.name}_{word}", taken) for word in ("turned", "stored", "returned")]
    steps: tuple[tuple[str, Ref, TensorType, Payload], ...] = (
        ("view", Ref(node.name), lying, View("permute", order)),
        ("map", Ref(names[0]), lying, load(0)),
        ("view", Ref(names[1]), node.type, View("permute", back)),
    )
    return [
        Node(name, op, (operand,), type, node.origin, payload, node.sources)
        for name, (op, operand, type, payload) in zip(names, steps, strict=True)
    ]
