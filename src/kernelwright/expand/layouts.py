"""Outputs lie in memory as eager's do: in eager's order, and in memory of their own.

In: a Graph of primitives and, in its contract, the strides of eager's outputs and the memory that
they lie in. Out: a Graph in which an output of another order is permuted into the order of memory,
stored, and permuted back as a view; eager's pointwise operators keep the order of their operand, so
`x.transpose(1, 2).relu()` is one. And an output that is a mere view here but not in eager, such as
`x.sum(1)` over an axis of one or a view of a clone, is stored too: nobody who writes to it may
change an input, or another output.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from kernelwright.expr import load
from kernelwright.graph import (
    SOURCES,
    Call,
    Graph,
    Node,
    Payload,
    Ref,
    TensorType,
    View,
    fresh_name,
    map_refs,
)
from kernelwright.interpret import resolve
from kernelwright.strides import lying

Order = tuple[int, ...]
STORED = (torch.float32, torch.float16, torch.bfloat16, torch.bool)


def lay_out(graph: Graph) -> Graph:
    return _in_order(_on_their_own(graph))


def _on_their_own(graph: Graph) -> Graph:
    """Copies of outputs that would share memory which eager's do not."""
    leaves, memory = pytree.tree_leaves(graph.outputs), graph.contract.memory
    if memory is None or len(memory) != len(leaves):
        return graph
    nodes, taken = list(graph.nodes), set(graph.by_name)
    homes = {n.name: n.name for n in graph if n.op in SOURCES}
    strides = graph.contract.strides or (None,) * len(leaves)
    made: dict[tuple[str, str], str] = {}
    outputs: list[Any] = []
    for leaf, home, wanted in zip(leaves, memory, strides, strict=True):
        outputs.append(leaf)
        if not isinstance(leaf, Ref) or home is None:
            continue
        node = graph[leaf.name]
        if node.payload is load(0) and graph.base(node.inputs[0]) == home in homes:
            outputs[-1] = Ref(node.inputs[0])  # torch.export copies what forward only hands on
            continue
        same = homes.setdefault(_owner(graph, leaf.name), home) == home
        if same or node.type.dtype not in STORED:
            continue
        if (leaf.name, home) not in made:
            added = _apart(graph, leaf.name, wanted, taken)
            nodes += added
            made[leaf.name, home] = added[-1].name
        outputs[-1] = Ref(made[leaf.name, home])
    if outputs == leaves:
        return graph
    whole = pytree.tree_unflatten(outputs, pytree.tree_structure(graph.outputs))
    return replace(graph, outputs=whole).with_nodes(nodes)


def _owner(graph: Graph, name: str) -> str:
    """Whose memory a value lies in: a call that stays with ATen may give a view, as diagonal."""
    while True:
        name = graph.base(name)
        call = graph[name].payload
        if graph[name].op != "opaque" or not isinstance(call, Call) or call.target == "getitem":
            return name
        returned = resolve(call.target)._schema.returns
        if not returned or returned[0].alias_info is None or not graph[name].inputs:
            return name
        name = graph[name].inputs[0]


def _apart(graph: Graph, name: str, wanted: tuple[int, ...] | None, taken: set[str]) -> list[Node]:
    """A copy of what the output is a view of, and the same views of that.

    A slice so keeps its strides. What eager copies behind some of the views, as a repeat does what
    it expands and a sum over an axis of one does a slice, is copied there.
    """
    output, views = graph[name], list[Node]()
    while graph[name].op == "view":
        views.insert(0, graph[name])
        name = graph[name].inputs[0]
    wide = max((i for i, n in enumerate(views) if n.payload == View("expand")), default=-2) + 2
    bases = [graph[name], *views][wide:]
    fitting = (i for i, n in enumerate(bases) if _lies_so(graph, output, n.name, wanted))
    first = next(fitting, 0)
    base, views = bases[first], bases[first + 1 :]
    copied = fresh_name(f"{base.name}_apart", taken)
    told = (output.origin, load(0), output.sources)
    added = [Node(copied, "map", (Ref(base.name),), base.type, *told)]
    for view in views:
        again = fresh_name(f"{view.name}_apart", taken)
        added.append(replace(view, name=again, args=(Ref(added[-1].name),)))
    return added


def _lies_so(graph: Graph, node: Node, dense: str, wanted: tuple[int, ...] | None) -> bool:
    """Whether it has these strides as a view of a dense value; where sizes are free, it may."""
    found = lying(graph, node.name, dense).stride()
    if wanted is None or len(wanted) != len(found):
        return True
    pairs = zip(node.type.shape, found, wanted, strict=True)
    return all(a == b for size, a, b in pairs if size != 1)


def _in_order(graph: Graph) -> Graph:
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
