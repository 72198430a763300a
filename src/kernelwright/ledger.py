"""The ledger: for every operator of the original, where it went and why.

In: the captured graph, the laws that fired, the finished plan. Out: one row per captured operator.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from kernelwright import dropout
from kernelwright.expand.contractions import LOWERINGS as CONTRACTIONS
from kernelwright.graph import SOURCES, Graph, Node
from kernelwright.lower.in_place import InPlace
from kernelwright.pattern import Rewrite
from kernelwright.plan.model import Plan, Region


@dataclass(frozen=True)
class LedgerRow:
    """`fate` is fused (into the kernel `where`), folded (by the law `where`) or aten.

    `module` is the path of the module whose forward called the operator.
    """

    op: str
    origin: str
    fate: str
    where: str
    why: str
    module: str = ""


WIDE = 92
INSIDE = "    "
COUNTED = "a counter goes up in place, one call for all of them"
COUNTED_BY_KERNEL = "a counter goes up in place, with a buffer that the kernel writes"


def ledger(
    captured: Graph, rewrites: tuple[Rewrite, ...], plan: Plan, in_place: InPlace
) -> tuple[LedgerRow, ...]:
    found_in, shared = homes(plan), _shared(plan)
    counters = _counters(plan, in_place)
    rows = []
    for node in captured:
        if node.name in counters:
            where = (node.origin.op, node.origin.place, *counters[node.name])
            rows.append(LedgerRow(*where, module=node.origin.module))
        elif node.op not in SOURCES and node.op != "getitem":
            found = _rows(node, rewrites, found_in.get(node.name, []), shared.get(node.name, ""))
            rows += [replace(row, module=node.origin.module) for row in found]
    return tuple(rows)


def _counters(plan: Plan, in_place: InPlace) -> dict[str, tuple[str, str, str]]:
    """For each captured operator that counts: its fate, where it went and why."""
    made = {b.name: region.name for region in plan.regions for b in region.outputs}
    hosts = {plan.graph.targets[name]: made[v] for name, v in in_place.counted.items()}
    return {
        c.source: ("fused", hosts[c.buffer], COUNTED_BY_KERNEL)
        if c.buffer in hosts
        else ("aten", "_foreach_add_", COUNTED)
        for c in plan.graph.counters
    }


def _rows(
    node: Node, rewrites: tuple[Rewrite, ...], homes: list[Region], shared: str
) -> list[LedgerRow]:
    op, origin = node.origin.op, node.origin.place
    # A bias that a law merged into a contraction's own is no contraction.
    others = [r for r in homes if r.kind != "contract" or _is_contraction(node)]
    law = next((r for r in rewrites if node.name in r.consumed), None)
    if law is not None and not homes:
        return [LedgerRow(op, origin, "folded", law.rule, str(law.exactness))]
    rewritten = next((f"{r.rule}; " for r in rewrites if r.where == node.origin), "")
    rows = []
    for region in others or homes:
        why = rewritten + str(region.why)
        if dropout.is_mask(region.call):
            rows.append(LedgerRow(op, origin, "fused", dropout.KERNEL, why + shared))
        elif region.program is not None:
            parted = any(r.kind == "contract" for r in homes)
            bias_alone = _is_contraction(node) and parted and not (region.gemm or region.conv)
            what = "its bias: " if bias_alone else ""
            rows.append(LedgerRow(op, origin, "fused", region.name, what + why + shared))
        else:
            called = (
                region.call.target.removeprefix("torch.ops.aten.") if region.call else region.kind
            )
            rows.append(LedgerRow(op, origin, "aten", called, why + shared))
    if rows:
        return rows
    return [
        LedgerRow(op, origin, "folded", "a view", "an index map: no data moves, no kernel runs")
    ]


def homes(plan: Plan) -> dict[str, list[Region]]:
    """For each captured operator, the regions that carry it out; its bias may live elsewhere."""
    found: dict[str, list[Region]] = {}
    for region in plan.regions:
        nodes = [plan.graph[n] for n in region.nodes]
        for source in dict.fromkeys(s for n in nodes if n.op != "view" for s in n.sources):
            found.setdefault(source, []).append(region)
    return found


def _shared(plan: Plan) -> dict[str, str]:
    """For each captured operator whose result several kernels use, how they come by it."""
    return {
        source: f"; {shared.why}"
        for shared in plan.shared
        for source in plan.graph[shared.value].sources
    }


def _is_contraction(node: Node) -> bool:
    return node.op in CONTRACTIONS


def render(rows: Iterable[LedgerRow], kernels: Mapping[str, str] = MappingProxyType({})) -> str:
    """Plain text for the docstring of the emitted file: what operators share is told once.

    So is what repeated layers share. `kernels` gives for the name of a kernel that of the one which
    stands for it and its equals.
    """
    fates = {"fused": "fused into", "folded": "folded:", "aten": "left to ATen:"}
    alike: dict[LedgerRow, list[str]] = {}
    for row in rows:
        told = replace(row, where=kernels.get(row.where, row.where), module="")
        alike.setdefault(told, []).append(row.module)
    together: dict[str, list[str]] = {}
    for r, modules in alike.items():
        fate = f"{fates[r.fate]} {r.where}; {r.why}"
        operator = f"{r.op}\0({r.origin})"  # on one line
        together.setdefault(fate, []).append(operator + _times(modules))
    lines = ["Where each operator of Model.forward went.", ""]
    for fate, operators in together.items():
        names = textwrap.wrap(", ".join(operators), WIDE, break_on_hyphens=False)
        lines += [line.replace("\0", " ") for line in names]
        lines += textwrap.wrap(fate, WIDE, initial_indent=INSIDE, subsequent_indent=INSIDE)
    return "\n".join(lines)


def _times(modules: list[str]) -> str:
    """` in blocks.0 to blocks.11`, or how often where modules have no names to tell apart."""
    if len(modules) == 1:
        return ""
    if len(set(modules)) < len(modules) or "" in modules:
        return f" {len(modules)} times"
    if len(modules) > 2 and _is_range(modules):
        return f" in {modules[0]} to {modules[-1]}"
    return f" in {' and '.join(modules)}"


def _is_range(modules: list[str]) -> bool:
    """Whether paths differ in one number alone, which counts up by one."""
    parts = [path.split(".") for path in modules]
    if len({len(p) for p in parts}) > 1:
        return False
    differing = [column for column in zip(*parts, strict=True) if len(set(column)) > 1]
    if len(differing) != 1 or not all(word.isdecimal() for word in differing[0]):
        return False
    numbers = [int(word) for word in differing[0]]
    return numbers == list(range(numbers[0], numbers[0] + len(numbers)))
