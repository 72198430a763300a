"""Outputs lie in memory as eager's do: in eager's order, and in memory of their own.

In: a Graph of primitives and, in its contract, the strides of eager's outputs and the memory that
they lie in. Out: a Graph in which an output of another order is permuted into the order of memory,
stored, and permuted back as a view; eager's pointwise operators keep the order of their operand, so
`x.transpose(1, 2).relu()` is one. Where eager's output has gaps, as a slice of a copy has, what it
is a slice of is stored, once for all outputs that share that memory. And an output that is a mere
view here but not in eager, such as `x.sum(1)` over an axis of one or a view of a clone, is stored
too: nobody who writes to it may change an input, or another output. An operand of a call whose
values depend on where its elements lie, as those of a dropout do, lies as eager's does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise, permutations
from typing import Any

import torch
from torch.utils import _pytree as pytree

from kernelwright.expand.builder import DECLINED
from kernelwright.expr import load
from kernelwright.graph import (
    SOURCES,
    STORED,
    Call,
    Graph,
    Node,
    Ref,
    TensorType,
    View,
    fresh_name,
    map_refs,
)
from kernelwright.memory import chain
from kernelwright.strides import as_seen, handed_out, on_fakes, shares_memory, stored

Order = tuple[int, ...]
Outputs = dict[str, tuple[int, ...]]  # names, and eager's strides
MOST_AXES = 5  # whose orders are tried


@dataclass(frozen=True)
class Place:
    """A value that is stored in an order: its axes from the widest steps to neighbours."""

    name: str
    order: Order


def lay_out(graph: Graph) -> Graph:
    """Outputs in the same memory of eager's are looked at together."""
    graph = _placed(_handed_on(graph))
    leaves, contract = pytree.tree_leaves(graph.outputs), graph.contract
    strides, memory = contract.strides or (), contract.memory or ()
    if not len(strides) == len(memory) == len(leaves):
        return graph  # the run on fake tensors took another way, or none
    with on_fakes():
        return _laid_out(graph, leaves)


def _laid_out(graph: Graph, leaves: list[Any]) -> Graph:
    memory = graph.contract.memory
    assert memory is not None
    seen, taken = as_seen(graph), set(graph.by_name)
    nodes, moved = list(graph.nodes), dict[tuple[str, str | None], str]()
    turned, times = _turned(seen), Counter(leaf.name for leaf in leaves if isinstance(leaf, Ref))
    for home, outputs, claimed in _by_memory(graph, leaves):
        claimed |= {n for n in outputs if times[n] > 1 and _is_copy(seen, n)}
        claimed |= {n for n, s in outputs.items() if not _fits(graph, seen, n, dict(turned), s)}
        for place, names in _places(graph, seen, outputs, claimed):
            copied = _stored(graph[place.name], place.order, taken)
            nodes += copied
            for name in names:
                again = _viewed(graph, name, place.name, copied[-1].name, taken)
                nodes += again
                moved[name, home] = [*copied, *again][-1].name
    laid = [
        Ref(moved.get((leaf.name, home), leaf.name)) if isinstance(leaf, Ref) else leaf
        for leaf, home in zip(leaves, memory, strict=True)
    ]
    whole = pytree.tree_unflatten(laid, pytree.tree_structure(graph.outputs))
    return replace(graph, outputs=whole).with_nodes(nodes) if moved else graph


def _placed(graph: Graph) -> Graph:
    """Operands that a call goes through by their places in memory lie as eager's."""
    if not graph.contract.placed:
        return graph
    seen, taken = as_seen(graph), set(graph.by_name)
    nodes = list[Node]()
    with on_fakes():
        for node in graph:
            moved = dict[str, str]()
            if node.op == "opaque" and node.name in graph.contract.placed:
                wanted = graph.contract.placed[node.name]
                for name, strides in zip(node.inputs, wanted, strict=True):
                    for place, _ in _places(graph, seen, {name: strides}, set()):
                        copied = _stored(graph[place.name], place.order, taken)
                        nodes += [
                            *copied,
                            *_viewed(graph, name, place.name, copied[-1].name, taken),
                        ]
                        moved[name] = nodes[-1].name
            nodes.append(_of_others(node, moved) if moved else node)
    return graph.with_nodes(nodes)


def _turned(seen: Graph) -> dict[str, Any]:
    """Inputs the other way round in memory, if no output of eager's follows them in that.

    Here one may: what ATen computes of it, where a mean over one place is none.
    """
    settled = seen.contract.follows | seen.contract.copies
    inputs = [n for n in seen if n.op == "input" and n.name not in settled]
    return {n.name: _in_memory(seen, n, tuple(reversed(range(len(n.type.shape))))) for n in inputs}


def _handed_on(graph: Graph) -> Graph:
    """torch.export copies what forward only hands on; eager's is the very input."""
    leaves, memory = pytree.tree_leaves(graph.outputs), graph.contract.memory
    if memory is None or len(memory) != len(leaves):
        return graph
    outputs: list[Any] = []
    for leaf, home in zip(leaves, memory, strict=True):
        outputs.append(leaf)
        if isinstance(leaf, Ref) and graph[leaf.name].payload is load(0):
            inner = graph[leaf.name].inputs[0]
            if graph.base(inner) == home and graph[home].op in SOURCES:
                outputs[-1] = Ref(inner)
    if outputs == leaves:
        return graph
    whole = pytree.tree_unflatten(outputs, pytree.tree_structure(graph.outputs))
    return replace(graph, outputs=whole).with_nodes(list(graph.nodes))


def _by_memory(graph: Graph, leaves: list[Any]) -> list[tuple[str, Outputs, set[str]]]:
    """Memory of eager's, the outputs in it, and those of them that are elsewhere here.

    A value that is in the memory of an input, or of an output in other memory, is claimed by that.
    """
    contract = graph.contract
    assert contract.strides is not None and contract.memory is not None
    groups: dict[str, Outputs] = {}
    for leaf, wanted, home in zip(leaves, contract.strides, contract.memory, strict=True):
        if not isinstance(leaf, Ref) or home is None or wanted is None:
            continue
        if len(wanted) == len(graph[leaf.name].type.shape):
            groups.setdefault(home, {}).setdefault(leaf.name, wanted)
    owners = {n.name: n.name for n in graph if n.op in SOURCES}
    found = []
    for home, outputs in groups.items():
        own = {name: _owner(graph, name) for name in outputs}
        claimed = {name for name in outputs if owners.setdefault(own[name], home) != home}
        if set(own.values()) != {home}:  # in an input's memory they lie as the input does
            found.append((home, outputs, claimed))
    return found


def _owner(graph: Graph, name: str) -> str:
    """Whose memory a value lies in."""
    return chain(graph, name)[-1]


def _places(
    graph: Graph, seen: Graph, outputs: Outputs, claimed: set[str]
) -> list[tuple[Place, list[str]]]:
    """What is stored so that these outputs lie as eager's do, for which of them."""
    known: dict[str, Any] = {}
    if not claimed and _all_fit(graph, seen, outputs, known):
        return []
    shared = _place(graph, seen, outputs)
    if shared is not None:
        return [(shared, list(outputs))]
    found = []
    for name, wanted in outputs.items():
        if _fits(graph, seen, name, known, wanted) and name not in claimed:
            continue
        place = _place(graph, seen, {name: wanted})
        order, lies = _order(graph[name], wanted), _order(graph[name], known[name].stride())
        if place is None and (name in claimed or (0 not in wanted and order != lies)):
            place = Place(name, order)
        found += [(place, [name])] if place is not None else []
    return found


def _place(graph: Graph, seen: Graph, outputs: Outputs) -> Place | None:
    """What all outputs are views of, next to them, and an order for it that gives their strides."""
    chains = [chain(graph, name) for name in outputs]
    for name in (n for n in chains[0] if all(n in of for of in chains)):
        node = graph[name]
        orders = [_order(node, outputs[name])] if name in outputs else _orders(node)
        for order in orders:
            known = {name: _in_memory(seen, seen[name], order)}
            if _all_fit(graph, seen, outputs, known):
                return Place(name, order)
    return None


def _in_memory(graph: Graph, node: Node, order: Order) -> torch.Tensor:
    """The value, stored in an order."""
    shape = tuple(node.type.shape[i] for i in order)
    made = stored(graph, replace(node, type=replace(node.type, shape=shape)))
    return made.permute([order.index(i) for i in range(len(order))])


def _all_fit(graph: Graph, seen: Graph, outputs: Outputs, known: dict[str, Any]) -> bool:
    """Whether all have these strides, and are in one memory: no reshape on the way is a copy."""
    fit = all(_fits(graph, seen, name, known, wanted) for name, wanted in outputs.items())
    return fit and (len(outputs) == 1 or not any(_copied(seen, name, known) for name in outputs))


def _copied(seen: Graph, name: str, known: dict[str, Any]) -> bool:
    """Whether a view on the way from what is in memory is a copy."""
    return any(
        inner in known and not shares_memory(known[view], known[inner])
        for view, inner in pairwise(chain(seen, name))
    )


def _is_copy(seen: Graph, name: str) -> bool:
    """Whether it is made by a reshape that copies: returned twice, it would be two copies."""
    known: dict[str, Any] = {}
    handed_out(seen, name, known)
    return _copied(seen, name, known)


def _fits(
    graph: Graph, seen: Graph, name: str, known: dict[str, Any], wanted: tuple[int, ...]
) -> bool:
    """Whether it has these strides, along axes with more than one place."""
    lies = handed_out(seen, name, known).stride()
    pairs = zip(seen[name].type.shape, lies, wanted, strict=True)
    same = all(a == b for size, a, b in pairs if size != 1)
    return same and _order(graph[name], lies) == _order(graph[name], wanted)


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
    through = chain(graph, name)
    added = list[Node]()
    for view in reversed(through[: through.index(base)]):
        again = fresh_name(f"{view}_returned", taken)
        other = _of_others(graph[view], {graph[view].inputs[0]: copied})
        added.append(replace(other, name=again))
        copied = again
    return added


def _of_others(node: Node, others: dict[str, str]) -> Node:
    """The same view or call of other values."""

    def other(ref: Ref) -> Ref:
        return Ref(others.get(ref.name, ref.name))

    call = node.payload
    if isinstance(call, Call):
        args, kwargs = (map_refs(x, other) for x in (call.args, call.kwargs))
        call = replace(call, args=args, kwargs=kwargs)
    return replace(node, args=map_refs(node.args, other), payload=call)
