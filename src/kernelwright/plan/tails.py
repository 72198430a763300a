"""The seat of an epilogue: contractions whose product only one kernel reads.

In: a Plan. Out: its Tails. Such a pair needs no full product in memory: on the CPU the two take
turns on panels of rows (lower/panels.py), and a generated GEMM would run the kernel's program in
its epilogue.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernelwright.plan.model import Plan, Program, Region


@dataclass(frozen=True)
class Tail:
    """A library contraction and the kernel that takes its product."""

    product: Region
    kernel: Region
    program: Program


def tails(plan: Plan) -> tuple[Tail, ...]:
    graph = plan.graph
    readers: dict[str, list[Region]] = {}
    for region in plan.regions:
        for name in dict.fromkeys(graph.base(r) for r in region.reads):
            readers.setdefault(name, []).append(region)
    returned = {graph.base(name) for name in graph.results}
    found = []
    for region in plan.regions:
        if region.kind != "contract" or region.outputs[0].name in returned:
            continue
        users = readers.get(region.outputs[0].name, [])
        if len(users) == 1 and users[0].program is not None:
            value = region.outputs[0].name
            ways = [r for r in users[0].reads if graph.base(r) == value]
            if ways == [value]:
                found.append(Tail(region, users[0], users[0].program))
    return tuple(found)
