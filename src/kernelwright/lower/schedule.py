"""What a program computes when: which values a chunk remembers, which are uniform over a row.

In: a Program. Out: a Schedule. A subexpression that an earlier step computed from a row's own data
becomes a field (a register per lane, on the CPU a scratch slot) instead of being computed again;
one that depends on stage results alone becomes a scalar, computed once when the last of them is
finished.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from kernelwright.expr import Expr, postorder
from kernelwright.plan import Access, Program

# The step that makes a field which is there before the first one.
GIVEN = -1


@dataclass(frozen=True)
class Step:
    """The element-wise work of one stage, or of the stores: roots, and the fields it makes."""

    roots: tuple[Expr, ...]
    makes: tuple[Expr, ...]


@dataclass(frozen=True)
class Schedule:
    fields: tuple[Expr, ...]
    scalars: tuple[tuple[Expr, int], ...]
    steps: tuple[Step, ...]


def schedule(program: Program, given: Expr | None = None) -> Schedule:
    """Steps 0..n-1 are the stages, step n the element stores; `given` is a field before them."""
    last = tuple(s.expr for s in program.stores if s.level == "element")
    roots = [*((s.expr,) for s in program.stages), last]
    rows = frozenset(program.rows)

    @cache
    def from_data(expr: Expr) -> bool:
        """Whether the value differs from row to row and from element to element."""
        if expr.op == "load":
            assert isinstance(expr.value, Access)
            return bool(expr.value.atoms & rows or not rows) and bool(
                expr.value.atoms & frozenset(program.elements)
            )
        return any(from_data(a) for a in expr.args)

    first: dict[Expr, int] = {} if given is None else {given: GIVEN}
    fields: dict[Expr, int] = {}
    scalars: dict[Expr, int] = {}

    def visit(expr: Expr, step: int, seen: set[Expr]) -> None:
        if expr in seen:
            return
        seen.add(expr)
        if is_scalar(expr):
            scalars[expr] = max(int(str(e.value)) for e in postorder(expr) if e.op == "acc")
        elif first.setdefault(expr, step) < step and from_data(expr):
            fields[expr] = first[expr]
        else:
            for a in expr.args:
                visit(a, step, seen)

    for step, exprs in enumerate(roots):
        seen: set[Expr] = set()
        for expr in exprs:
            visit(expr, step, seen)
    for store in program.stores:
        if store.level != "element":
            for expr in postorder(store.expr):
                if is_scalar(expr) and not expr.args:
                    scalars.setdefault(expr, int(str(expr.value)))
    steps = tuple(
        Step(tuple(exprs), tuple(f for f, made in fields.items() if made == step))
        for step, exprs in enumerate(roots)
    )
    return Schedule(tuple(fields), tuple(scalars.items()), steps)


@cache
def is_scalar(expr: Expr) -> bool:
    """Made of stage results, sizes and constants only, with at least one stage result."""
    nodes = postorder(expr)
    varies = any(e.op in ("load", "index", "inside") for e in nodes)
    return any(e.op == "acc" for e in nodes) and not varies
