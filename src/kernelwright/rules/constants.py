"""Numbers in the program: chains of shifts and of scales become one, x + x becomes a scale.

Folding computes a + b or a * b in double precision once, at compile time, where eager rounds x
after each step: the laws are equal in real arithmetic, and what remains is nearer to the truth.
They keep away from numbers at which eager overflows, underflows or rounds on purpose:
- magnitudes are within 2^-60 and 2^60 for float32 (and as much closer for a narrower type);
- large shifts that cancel, as in (x + 2^23) - 2^23, round x to a grid, which is what they are for.

Not here: x + 0 => x (-0 + 0 is 0, and 1 / x can see it), x * 0 => 0 and x - x => 0 (both are NaN
for an infinite or NaN x).
"""

from __future__ import annotations

import torch

from kernelwright.graph import Ref
from kernelwright.pattern import Builder, Exactness, Match, Num, Pat, Rule, Var, all_of
from kernelwright.rules.conditions import floating, in_range, unit_alpha

SHIFTS = ("add", "sub")


def shift_of(op: str, number: float, alpha: float) -> float:
    """What `add(x, number, alpha)` or `sub(x, number, alpha)` adds to x."""
    return alpha * number if op == "add" else -alpha * number


def _shifts(match: Match) -> tuple[float, float]:
    inner, outer = match.node("inner"), match.root
    a = shift_of(inner.op, match.number("a"), match.number("alpha_a"))
    b = shift_of(outer.op, match.number("b"), match.number("alpha_b"))
    return a, b


def _shifts_fold(match: Match) -> str | None:
    dtype = match.root.type.dtype
    a, b = _shifts(match)
    outside = [c for c in (a, b) if not in_range(c, dtype)]
    if outside:
        return f"the shift {outside[0]:g} is not in the range where folding is safe"
    if a * b < 0 and max(abs(a), abs(b)) > torch.finfo(dtype).eps ** -0.5:
        return f"the shifts {a:g} and {b:g} cancel and are large, so they round x on purpose"
    return None


def _build_shift(match: Match, builder: Builder) -> Ref:
    return builder.node("add", (match["x"], sum(_shifts(match)), 1), match.root.type)


def _factors_fold(match: Match) -> str | None:
    dtype = match.root.type.dtype
    a, b = match.number("a"), match.number("b")
    outside = [c for c in (a, b) if c == 0 or not in_range(c, dtype)]
    if outside:
        return f"the factor {outside[0]:g} is not in the range where folding is safe"
    folded = a * b if match.node("inner").op == match.root.op else a / b
    if not in_range(folded, dtype):
        return f"the folded factor {folded:g} is not in the range where folding is safe"
    return None


def _fold_factors(law: str, inner: str, outer: str) -> Rule:
    """(x * a) * b and its three relatives; the result divides only if both steps do."""

    def build(match: Match, builder: Builder) -> Ref:
        a, b = match.number("a"), match.number("b")
        if inner == outer:
            return builder.node(inner, (match["x"], a * b), match.root.type)
        factor = a / b if inner == "mul" else b / a
        return builder.node("mul", (match["x"], factor), match.root.type)

    pattern = Pat(outer, Pat(inner, Var("x"), Num("a"), name="inner"), Num("b"))
    when = all_of(floating, _factors_fold)
    return Rule(law, pattern, build, Exactness.REASSOCIATES, when)


RULES = (
    Rule(
        "x * 1 => x",
        Pat("mul", Var("x"), 1),
        lambda match, builder: match["x"],
        Exactness.EXACT,
        when=floating,
    ),
    Rule(
        "x / 1 => x",
        Pat("div", Var("x"), 1),
        lambda match, builder: match["x"],
        Exactness.EXACT,
        when=floating,
    ),
    Rule(
        "x + x => 2 * x",
        Pat("add", Var("x"), Var("x"), Num("alpha")),
        lambda match, builder: builder.node("mul", (match["x"], 2), match.root.type),
        Exactness.EXACT,
        when=all_of(floating, unit_alpha("alpha")),
    ),
    Rule(
        "(x + a) + b => x + (a + b)",
        Pat(
            SHIFTS,
            Pat(SHIFTS, Var("x"), Num("a"), Num("alpha_a"), name="inner"),
            Num("b"),
            Num("alpha_b"),
        ),
        _build_shift,
        Exactness.REASSOCIATES,
        when=all_of(floating, _shifts_fold),
    ),
    _fold_factors("(x * a) * b => x * (a * b)", "mul", "mul"),
    _fold_factors("(x / a) / b => x / (a * b)", "div", "div"),
    _fold_factors("(x * a) / b => x * (a / b)", "mul", "div"),
    _fold_factors("(x / a) * b => x * (b / a)", "div", "mul"),
)
