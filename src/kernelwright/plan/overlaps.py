"""A value under overlapping windows: computed again in each of them, or stored first, by cost.

In: the windows of a graph that look at a lazy value. Out: for each such value a verdict with its
numbers. Where windows overlap, each element is computed as often as windows look at it. Storing it
costs a write, a read and a kernel of its own. Both are counted in bytes, as in sharing.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from kernelwright.expr import Expr
from kernelwright.expr import cost as operations
from kernelwright.graph import Graph, hint
from kernelwright.plan.limits import Limits
from kernelwright.plan.model import LAZY
from kernelwright.plan.reasons import Code, Shared, reason
from kernelwright.walk import reach


def overlaps(
    graph: Graph, homes: Mapping[str, object], stored: Set[str], limits: Limits, batch: int
) -> tuple[Shared, ...]:
    """A verdict on every lazy value that windows would compute more than once.

    `homes` has the values that are in memory anyway, and so has `stored`.
    """
    found: dict[str, Shared] = {}
    for node in graph:
        value = graph.base(node.inputs[0]) if node.op == "window" else None
        if value is None or graph[value].op not in LAZY or value in homes or value in stored:
            continue
        elements = hint(graph[value].type.numel, batch)
        times = hint(node.type.numel, batch) / elements
        if times > 1 and value not in found:
            found[value] = _verdict(graph, value, times, homes, stored, limits, batch)
    return tuple(v for v in found.values() if v.stored)


def _verdict(
    graph: Graph,
    value: str,
    times: float,
    homes: Mapping[str, object],
    stored: Set[str],
    limits: Limits,
    batch: int,
) -> Shared:
    def below(name: str) -> tuple[str, ...]:
        node = graph[name]
        lazy = node.op == "view" or (node.op in LAZY and name not in homes and name not in stored)
        return node.inputs if lazy else ()

    flops = 0
    for name in reach([value], below):
        payload = graph[name].payload
        if below(name) and isinstance(payload, Expr):
            flops += hint(graph[name].type.numel, batch) * operations(payload)
    again = (times - 1) * flops / limits.flops_per_byte
    type = graph[value].type
    once = limits.launch_bytes + 2 * hint(type.numel, batch) * type.dtype.itemsize
    why = reason(Code.OVERLAPPED, times=times, once=float(once), again=float(again))
    return Shared(value, once < again, 1, why)
