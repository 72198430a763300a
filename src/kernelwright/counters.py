"""Buffers that a call adds a number to, and does nothing else with: they are counted up in place.

In: a captured graph, where the new value of such a buffer is an operator and a result like any
other. Out: the same graph with a Counter for each, so that the kernels of a network with twenty
BatchNorms count its `num_batches_tracked` on the way (lower/in_place.py), in the place of twenty
operators and a copy.
"""

from __future__ import annotations

from dataclasses import replace

from kernelwright.graph import Call, Counter, Graph, Ref, refs


def counted(graph: Graph) -> Graph:
    """The graph, its counters apart from the buffers that are given new values."""
    found = {value: c for _, value in graph.mutations if (c := _counter(graph, value)) is not None}
    if not found:
        return graph
    mutations = tuple(m for m in graph.mutations if m[1] not in found)
    after = replace(graph, mutations=mutations, counters=tuple(found.values()))
    return after.with_nodes([n for n in graph if n.name not in found])


def _counter(graph: Graph, value: str) -> Counter | None:
    """What a new value counts up, if it is its buffer and a whole number, and nobody reads it."""
    call = graph[value].payload
    if not isinstance(call, Call) or call.target != "torch.ops.aten.add.Tensor":
        return None
    match call.args:
        case (Ref(name), int(by)) if graph[name].op == "buffer" and not isinstance(by, bool):
            target = graph.targets[name]
        case _:
            return None
    read = [*graph.users[value], *(u for u in graph.users[name] if u != value)]
    returned = {graph.base(n) for n in refs(graph.outputs)} & {name, value}
    rewritten = [buffer for buffer, new in graph.mutations if target == buffer or new == value]
    whole = not graph[name].type.dtype.is_floating_point and dict(call.kwargs) in ({}, {"alpha": 1})
    if read or returned or len(rewritten) != 1 or not whole:
        return None
    return Counter(target, by, value)
