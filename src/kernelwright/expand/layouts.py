"""Outputs lie in memory as eager's do: in eager's order, and in memory of their own.

In: a Graph of primitives and, in its contract, the strides of eager's outputs and the memory that
they lie in. Out: a Graph in which an output of another order is permuted into the order of memory,
stored, and permuted back as a view; eager's pointwise operators keep the order of their operand, so
`x.transpose(1, 2).relu()` is one. Where eager's output has gaps, as a slice of a copy has, what it
is a slice of is stored, once for all outputs that share that memory. And an output that is a mere
view here but not in eager, such as `x.sum(1)` over an axis of one or a view of a clone, is stored
too: nobody who writes to it may change an input, or another output.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import torch
from torch.utils import _pytree as pytree

from kernelwright.expand.builder import DECLINED
from kernelwright.expr import load
from kernelwright.graph import (
    SOURCES,
    Call,
    Graph,
    Node,
    Ref,
    TensorType,
    View,
    fresh_name,
    hint,
    map_refs,
)
from kernelwright.interpret import resolve
from kernelwright.strides import handed_out, lying

Order = tuple[int, ...]
Outputs = dict[str, tuple[int, ...]]  # names, and eager's strides
STORED = (torch.float32, torch.float16, torch.bfloat16, torch.bool)
MOST_AXES = 5  # whose orders are tried


@dataclass(frozen=True)
class Place:
    """A value that is stored in an order: its axes from the widest steps to neighbours."""

    name: str
    order: Order


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
        if homes.setdefault(_owner(graph, leaf.name), home) == home:
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
    added = [_copy(copied, base.name, base.type, output)]
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
    """Copies of outputs that would lie in another order, or with other gaps, than eager's."""
    nodes, moved, taken = list(graph.nodes), dict[str, str](), set(graph.by_name)
    for outputs in _by_memory(graph):
        for place, names in _places(graph, outputs):
            stored = _stored(graph[place.name], place.order, taken)
            nodes += stored
            for name in names:
                again = _viewed(graph, name, place.name, stored[-1].name, taken)
                nodes += again
                moved[name] = [*stored, *again][-1].name
    changed = map_refs(graph.outputs, lambda ref: Ref(moved.get(ref.name, ref.name)))
    return replace(graph, outputs=changed).with_nodes(nodes) if moved else graph


def _by_memory(graph: Graph) -> list[Outputs]:
    """Outputs that the call makes itself, with eager's strides: those together that share memory.

    Where the run on fake tensors took another way, as an LSTM's may, nothing is known.
    """
    leaves, contract = pytree.tree_leaves(graph.outputs), graph.contract
    if contract.strides is None or len(contract.strides) != len(leaves):
        return []
    homes = contract.memory or tuple(str(i) for i in range(len(leaves)))
    found: dict[str | None, Outputs] = {}
    for leaf, wanted, home in zip(leaves, contract.strides, homes, strict=True):
        if not isinstance(leaf, Ref) or wanted is None:
            continue
        own = graph[_owner(graph, leaf.name)].op not in SOURCES
        if own and len(wanted) == len(graph[leaf.name].type.shape):
            found.setdefault(home, {}).setdefault(leaf.name, wanted)
    return list(found.values())


def _places(graph: Graph, outputs: Outputs) -> list[tuple[Place, list[str]]]:
    """What is stored so that these outputs lie as eager's do, for which of them."""
    known: dict[str, Any] = {}
    if all(_fits(graph[n], handed_out(graph, n, known), s) for n, s in outputs.items()):
        return []
    shared = _place(graph, outputs)
    if shared is not None:
        return [(shared, list(outputs))]
    found = []
    for name, wanted in outputs.items():
        node, lies = graph[name], handed_out(graph, name, known)
        order = _order(node, wanted)
        if not _fits(node, lies, wanted):
            place = _place(graph, {name: wanted})
            if place is None and 0 not in wanted and order != _order(node, lies.stride()):
                place = Place(name, order)
            found += [(place, [name])] if place is not None else []
    return found


def _place(graph: Graph, outputs: Outputs) -> Place | None:
    """What all outputs are views of, next to them, and an order for it that gives their strides."""
    chains = [_chain(graph, name) for name in outputs]
    for name in (n for n in chains[0] if all(n in chain for chain in chains)):
        node = graph[name]
        orders = [_order(node, outputs[name])] if name in outputs else _orders(node)
        for order in orders:
            known = {name: _in_memory(node, order)}
            if all(_fits(graph[n], handed_out(graph, n, known), s) for n, s in outputs.items()):
                return Place(name, order)
    return None


def _chain(graph: Graph, name: str) -> list[str]:
    """A value, what it is a view of, and so on."""
    found = [name]
    while graph[found[-1]].op == "view":
        found.append(graph[found[-1]].inputs[0])
    return found


def _in_memory(node: Node, order: Order) -> torch.Tensor:
    """The value, stored in an order."""
    made = torch.empty([hint(node.type.shape[i]) for i in order], device="meta")
    return made.permute([order.index(i) for i in range(len(order))])


def _fits(node: Node, lies: torch.Tensor, wanted: tuple[int, ...]) -> bool:
    """Whether it has these strides, along axes with more than one place."""
    pairs = zip(node.type.shape, lies.stride(), wanted, strict=True)
    same = all(a == b for size, a, b in pairs if hint(size) != 1)
    return same and _order(node, lies.stride()) == _order(node, wanted)


def _orders(node: Node) -> Iterator[Order]:
    """All orders of a value's axes, as it is first; ones stay in place."""
    axes = [i for i, d in enumerate(node.type.shape) if d != 1]
    for ranked in permutations(axes) if len(axes) <= MOST_AXES else [axes]:
        following = iter(ranked)
        yield tuple(next(following) if d != 1 else i for i, d in enumerate(node.type.shape))


def _order(node: Node, strides: tuple[int, ...]) -> Order:
    """The axes from the one with the widest steps to the one of neighbours; ones stay in place."""
    axes = [i for i, d in enumerate(node.type.shape) if d != 1]
    ranked = iter(sorted(axes, key=lambda i: -strides[i]))
    return tuple(next(ranked) if d != 1 else i for i, d in enumerate(node.type.shape))


def _stored(node: Node, order: Order, taken: set[str]) -> list[Node]:
    """Permute, store, permute back."""
    back = tuple(order.index(i) for i in range(len(order)))
    lying = TensorType(tuple(node.type.shape[i] for i in order), node.type.dtype)
    if order == tuple(range(len(order))):
        return [_copy(fresh_name(f"{node.name}_stored", taken), node.name, node.type, node)]
    names = [fresh_name(f"{node.name}_{word}", taken) for word in ("turned", "stored", "returned")]

    def turned(name: str, operand: str, type: TensorType, axes: Order) -> Node:
        how = View("permute", axes)
        return Node(name, "view", (Ref(operand),), type, node.origin, how, node.sources)

    return [
        turned(names[0], node.name, lying, order),
        _copy(names[1], names[0], lying, node),
        turned(names[2], names[1], node.type, back),
    ]


def _copy(name: str, operand: str, type: TensorType, of: Node) -> Node:
    """A value stored row by row: by a kernel, or by ATen if kernels have no such type."""
    if type.dtype in STORED:
        return Node(name, "map", (Ref(operand),), type, of.origin, load(0), of.sources)
    rows = (("memory_format", torch.contiguous_format),)
    call = Call("torch.ops.aten.clone.default", (Ref(operand),), rows)
    return Node(name, "opaque", (DECLINED,), type, of.origin, call, of.sources)


def _viewed(graph: Graph, name: str, base: str, copied: str, taken: set[str]) -> list[Node]:
    """The views by which an output is one of `base`, of a copy of that."""
    chain = _chain(graph, name)
    added = list[Node]()
    for view in reversed(chain[: chain.index(base)]):
        again = fresh_name(f"{view}_returned", taken)
        added.append(replace(graph[view], name=again, args=(Ref(copied),)))
        copied = again
    return added
