"""What moves rows goes before what works within rows: rolled rows are read so, not stored again.

A kernel reads a rolled tensor at no cost, by other addresses. It cannot store one: a roll of its
result joins two parts of it, and both must be in memory first.
"""

from __future__ import annotations

from kernelwright.graph import Ref
from kernelwright.pattern import ANY, Builder, Exactness, Match, OneOf, Pat, Rule, Var, all_of
from kernelwright.rules.conditions import floating

NORM = Pat("layer_norm", Var("x"), ..., name="norm")


def _within_rows(match: Match) -> str | None:
    """Rows must stay whole: neither the roll nor a regrouping before it may touch their axes."""
    norm, root = match.node("norm"), match.root
    rank, inside = len(root.type.shape), len(norm.args[1])
    if root.type.shape[rank - inside :] != tuple(norm.args[1]):
        return f"{root.name} has other rows than {norm.name}"
    axes = [axis % rank for axis in root.args[2]]
    if not axes:
        return f"{root.name} rolls all elements as one row"
    if any(axis >= rank - inside for axis in axes):
        return f"{root.name} rolls along the axis {max(axes)}, which is normalised"
    return None


def _rolled_first(match: Match, builder: Builder) -> Ref:
    norm, root = match.node("norm"), match.root
    x: Ref = match["x"]
    if match.type("x") != root.type:
        x = builder.node("view", (x, root.type.shape), root.type)
    rolled = builder.like(root, x)
    return builder.like(norm, rolled, shape=root.type.shape)


RULES = (
    Rule(
        "roll(layer_norm(x)) => layer_norm(roll(x))",
        Pat("roll", OneOf((NORM, Pat(("view", "reshape"), NORM, ANY))), ...),
        _rolled_first,
        Exactness.EXACT,
        when=all_of(floating, _within_rows),
    ),
)
