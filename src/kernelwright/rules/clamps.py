"""Clamps of clamps: relu, relu6, hardtanh and clamp are all min(max(x, lo), hi), and so is a chain.

For every order of the four bounds, with min and max as lattice operations,
    min(max(min(max(x, a), b), c), d) = min(max(x, max(a, c)), min(max(b, c), d)),
and rounding the bounds to the tensor's type is monotone, so the result has the same bits. NaN
passes through either side. torch gives the upper bound where the lower one exceeds it; a folded
clamp states such an interval as [hi, hi]. Zero may change its sign (relu(-0) may be 0 or -0).
"""

from __future__ import annotations

import math

from kernelwright.graph import Node, Ref
from kernelwright.pattern import Arg, Builder, Exactness, Match, Pat, Rule, Var, all_of
from kernelwright.rules.conditions import floating

CLAMPS = ("relu", "relu6", "hardtanh", "clamp", "clip", "clamp_min", "clamp_max")
Bounds = tuple[float, float]


def bounds(node: Node) -> Bounds | str:
    """The interval of a clamp, or why it has none."""
    args = node.args
    match node.op:
        case "relu":
            ends: tuple[object, object] = (0.0, None)
        case "relu6":
            ends = (0.0, 6.0)
        case "clamp_min":
            ends = (args[1], None)
        case "clamp_max":
            ends = (None, args[1])
        case _:
            ends = (args[1], args[2])
    values = []
    for end, missing in zip(ends, (-math.inf, math.inf), strict=True):
        if end is not None and (not isinstance(end, int | float) or isinstance(end, bool)):
            return f"a bound of {node.name} is {end}, not a number"
        if end is not None and math.isnan(end):
            return f"a bound of {node.name} is NaN"
        values.append(missing if end is None else float(end))
    low, high = values
    return min(low, high), high


def compose(first: Bounds, second: Bounds) -> Bounds:
    """The interval of clamp(clamp(x, *first), *second)."""
    low = max(first[0], second[0])
    high = min(max(first[1], second[0]), second[1])
    return min(low, high), high


def _intervals(match: Match) -> tuple[Bounds, Bounds] | str:
    inner, outer = bounds(match.node("inner")), bounds(match.root)
    if isinstance(inner, str):
        return inner
    return outer if isinstance(outer, str) else (inner, outer)


def _numbers(match: Match) -> str | None:
    found = _intervals(match)
    return found if isinstance(found, str) else None


def _first_stays(match: Match) -> str | None:
    found = _intervals(match)
    if isinstance(found, str):
        return found
    inner, outer = found
    return None if compose(inner, outer) == inner else f"{_text(outer)} cuts {_text(inner)}"


def _text(interval: Bounds) -> str:
    return f"[{interval[0]:g}, {interval[1]:g}]"


def _fold(match: Match, builder: Builder) -> Ref:
    found = _intervals(match)
    assert not isinstance(found, str)
    inner, outer = found
    folded = compose(inner, outer)
    if folded == outer:
        return builder.like(match.root, match["x"])
    low = None if folded[0] == -math.inf else folded[0]
    high = None if folded[1] == math.inf else folded[1]
    return builder.node("clamp", (match["x"], low, high), match.root.type)


def _not_negative(match: Match) -> str | None:
    interval, slope = bounds(match.node("inner")), match["slope"]
    if isinstance(interval, str):
        return interval
    if interval[0] < 0:
        return f"{match.node('inner').name} can be negative"
    return None if math.isfinite(slope) else f"the slope is {slope}"


_CLAMP = Pat(CLAMPS, Var("x"), ..., name="inner")

RULES = (
    Rule(
        "clamp(clamp(x, a, b), c, d) => clamp(x, a, b) if [a, b] lies in [c, d]",
        Pat(CLAMPS, _CLAMP, ...),
        lambda match, builder: match["inner"],
        Exactness.EXACT,
        when=all_of(floating, _first_stays),
        single_use=False,
    ),
    Rule(
        "clamp(clamp(x, a, b), c, d) => clamp(x, max(a, c), min(max(b, c), d))",
        Pat(CLAMPS, _CLAMP, ...),
        _fold,
        Exactness.EXACT,
        when=all_of(floating, _numbers),
    ),
    Rule(
        "leaky_relu(clamp(x, a, b), s) => clamp(x, a, b) if a >= 0",
        Pat("leaky_relu", _CLAMP, Arg("slope")),
        lambda match, builder: match["inner"],
        Exactness.EXACT,
        when=all_of(floating, _not_negative),
        single_use=False,
    ),
)
