"""The largest and the smallest: increasing functions go past them, and run once instead of n times.

max(f(x)) is f(max(x)) and min(f(x)) is f(min(x)) for an f that never decreases (orders.py). This
costs nothing anywhere: f is in the same fused kernel before as after, with fewer numbers to run on.
Not if somebody else reads f(x) too, nor if the place of the maximum is asked for: two elements may
tie after f that did not before.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernelwright.graph import Ref
from kernelwright.pattern import Builder, Exactness, Match, Pat, Rule, Var, all_of
from kernelwright.rules.conditions import floating
from kernelwright.rules.orders import ORDERLY, SMOOTH, unordered
from kernelwright.rules.reductions import WITH_INDICES

EXTREMES = ("amax", "amin", "max", "min")
CLIPS = "f clips, or shifts or scales by a number"
INCREASES = "f is increasing"


def _keeps_order(match: Match) -> str | None:
    f = match.node("f")
    if match.graph[f.inputs[0]].type != f.type:
        return f"{f.name} enlarges or converts what it is given"
    return unordered(f)


def _reduce_first(match: Match, builder: Builder) -> Ref:
    reduced = builder.like(match.root, match["x"], own=True)
    return builder.like(match.node("f"), reduced, shape=match.root.type.shape, own=True)


def _values_first(match: Match, builder: Builder) -> Ref:
    found = match.node("found")
    _, axis, keeps = found.args
    arguments = (match["x"], (axis,), keeps)
    reduced = builder.node("amax" if found.op == "max.dim" else "amin", arguments, match.root.type)
    return builder.like(match.node("f"), reduced, shape=match.root.type.shape, own=True)


def _laws(ops: Sequence[str], which: str, exactness: Exactness) -> tuple[Rule, ...]:
    f = Pat(ops, Var("x"), ..., name="f")
    when = all_of(floating, _keeps_order)
    values = Pat("getitem", Pat(WITH_INDICES, f, ..., name="found"), 0)
    return (
        Rule(
            f"max(f(x)) => f(max(x)), and so for min, if {which}",
            *(Pat(EXTREMES, f, ...), _reduce_first, exactness, when),
        ),
        Rule(
            f"values of max(f(x)) => f(max(x)), and so for min, if {which}",
            *(values, _values_first, exactness, when),
        ),
    )


RULES = (
    *_laws(ORDERLY, CLIPS, Exactness.EXACT),
    *_laws(SMOOTH, INCREASES, Exactness.REASSOCIATES),
)
