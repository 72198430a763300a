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
    readers: dict[str, list[Region]] = {}
    for region in plan.regions:
        for name in region.reads:
            readers.setdefault(name, []).append(region)
    found = []
    for region in plan.regions:
        if region.kind != "contract" or region.outputs[0].name in plan.graph.results:
            continue
        users = readers.get(region.outputs[0].name, [])
        if len(users) == 1 and users[0].program is not None:
            found.append(Tail(region, users[0], users[0].program))
    return tuple(found)
