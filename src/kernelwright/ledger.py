"""The ledger: for every operator of the original, where it went and why.

In: the captured graph, the laws that fired, the finished plan. Out: one row per captured operator.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernelwright.graph import SOURCES, Graph, Node
from kernelwright.pattern import Rewrite
from kernelwright.plan import Plan, Region


@dataclass(frozen=True)
class LedgerRow:
    """`fate` is fused (into the kernel `where`), folded (by the law `where`) or aten."""

    op: str
    origin: str
    fate: str
    where: str
    why: str


def ledger(captured: Graph, rewrites: tuple[Rewrite, ...], plan: Plan) -> tuple[LedgerRow, ...]:
    rows = []
    for node in captured:
        if node.op not in SOURCES and node.op != "getitem":
            rows += _rows(node, rewrites, plan)
    return tuple(rows)


def _rows(node: Node, rewrites: tuple[Rewrite, ...], plan: Plan) -> list[LedgerRow]:
    op, origin = node.origin.op, node.origin.place
    homes = _homes(node.name, plan)
    law = next((r for r in rewrites if node.name in r.consumed), None)
    if law is not None and not homes:
        return [LedgerRow(op, origin, "folded", law.rule, str(law.exactness))]
    rows = []
    for region, own in homes:
        why = str(region.why)
        if region.kind == "rowwise":
            what = "its bias: " if own == "bias" else ""
            rows.append(LedgerRow(op, origin, "fused", region.name, what + why))
        else:
            called = region.call.target.removeprefix("torch.ops.aten.") if region.call else region.kind
            rows.append(LedgerRow(op, origin, "aten", called, why))
    if rows:
        return rows
    return [LedgerRow(op, origin, "folded", "a view", "an index map: no data moves, no kernel runs")]


def _homes(name: str, plan: Plan) -> list[tuple[Region, str]]:
    """The regions that carry out a captured operator; a contraction's bias may live elsewhere."""
    found: list[tuple[Region, str]] = []
    for region in plan.regions:
        own = [plan.graph[n] for n in region.nodes if name in plan.graph[n].sources]
        if any(n.op != "view" for n in own):
            is_bias = region.kind == "rowwise" and f"{name}_without_bias" in plan.graph.by_name
            found.append((region, "bias" if is_bias else ""))
    # A bias that a law merged into a contraction's own is not the contraction.
    return [(r, own) for r, own in found if r.kind != "contract" or name in _stem(r)] or found


def _stem(region: Region) -> set[str]:
    return {n.removesuffix("_without_bias") for n in region.nodes}


def render(rows: tuple[LedgerRow, ...]) -> str:
    """Plain text for the docstring of the emitted file."""
    width = max((len(f"{r.op} ({r.origin})") for r in rows), default=0)
    fates = {"fused": "fused into", "folded": "folded:", "aten": "left to ATen:"}
    return "\n".join(
        f"{f'{r.op} ({r.origin})':<{width}}  {fates[r.fate]} {r.where}; {r.why}" for r in rows
    )
