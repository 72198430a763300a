"""What a program computes when: which values a chunk remembers, which are uniform over a row.

In: a Program. Out: a Schedule. A subexpression that an earlier step computed from a row's own data
becomes a field (a register per lane, on the CPU a scratch slot) instead of being computed again;
one that depends on stage results alone becomes a scalar, computed once when the last of them is
finished.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial

from kernelwright.expr import Expr, postorder
from kernelwright.plan.model import Access, Coordinate, Program
from kernelwright.walk import reach

# The step that makes a field which is there before the first one.
GIVEN = -1


@dataclass(frozen=True)
class Step:
    """The element-wise work of one stage, or of the stores: roots, and the fields it makes."""

    roots: tuple[Expr, ...]
    makes: tuple[Expr, ...]


@dataclass(frozen=True)
class Schedule:
    """`held`: for each step, the fields of earlier ones that it or a later one needs."""

    fields: tuple[Expr, ...]
    scalars: tuple[tuple[Expr, int], ...]
    steps: tuple[Step, ...]
    held: tuple[tuple[Expr, ...], ...]


def stores_first(program: Program) -> bool:
    """Whether elements can be stored with the first stage: they await none."""
    stored = [s.expr for s in program.stores if s.level == "element"]
    return bool(program.stages and stored) and all(e.awaits < 0 for e in stored)


def schedule(
    program: Program,
    given: Collection[Expr] = (),
    outside: Collection[int] = (),
    first_stored: bool = False,
) -> Schedule:
    """Steps 0..n-1 are the stages, step n the element stores; `given` are fields before them.

    Atoms `outside` are the same for all that a thread does: what depends on them and on stage
    results is a scalar too. `first_stored`: the stores are done with the first stage, so that
    nothing is held for them.
    """
    last = tuple(s.expr for s in program.stores if s.level == "element")
    roots = [*((s.expr,) for s in program.stages), last]
    if first_stored:
        roots[0], roots[-1] = (*roots[0], *last), ()
    uniform = _uniform(roots, frozenset(outside))
    from_data = _differing(program, [e for exprs in roots for e in exprs], given)
    first = dict.fromkeys(given, GIVEN)
    fields: dict[Expr, int] = {}
    last_use: dict[Expr, int] = {}
    scalars: dict[Expr, int] = {}

    def needed(step: int, expr: Expr) -> tuple[Expr, ...]:
        """What is computed for an expression at a step, if that is not there already."""
        if expr.awaits >= 0 and expr in uniform:
            scalars[expr] = expr.awaits
        elif first.setdefault(expr, step) < step and expr in from_data:
            fields[expr] = first[expr]
            last_use[expr] = step
        else:
            return expr.args
        return ()

    for step, exprs in enumerate(roots):
        reach(exprs, partial(needed, step))
    for store in program.stores:
        if store.level != "element":
            for expr in postorder(store.expr):
                if expr.op == "acc":
                    scalars.setdefault(expr, int(str(expr.value)))
    steps = tuple(
        Step(tuple(exprs), tuple(f for f, made in fields.items() if made == step))
        for step, exprs in enumerate(roots)
    )
    held = tuple(
        tuple(f for f, made in fields.items() if made < step <= last_use[f])
        for step in range(len(steps))
    )
    return Schedule(tuple(fields), tuple(scalars.items()), steps, held)


def _differing(program: Program, roots: list[Expr], given: Collection[Expr]) -> set[Expr]:
    """Expressions whose value differs from row to row and from element to element."""
    rows, elements = frozenset(program.rows), frozenset(program.elements)
    found: set[Expr] = set()
    for expr in postorder(*roots):
        if expr in given:
            differs = True
        elif expr.op == "load":
            assert isinstance(expr.value, Access)
            atoms = expr.value.atoms
            differs = bool(atoms & rows or not rows) and bool(atoms & elements)
        else:
            differs = any(a in found for a in expr.args)
        if differs:
            found.add(expr)
    return found


def _uniform(roots: Sequence[Sequence[Expr]], outside: frozenset[int]) -> set[Expr]:
    """Made of stage results, sizes, constants, and indices of what is outside."""
    found: set[Expr] = set()
    for expr in postorder(*(e for exprs in roots for e in exprs)):
        if expr.args:
            same = all(a in found for a in expr.args)
        elif expr.op == "index":
            assert isinstance(expr.value, Coordinate)
            same = {atom for atom, _ in expr.value.strides} <= outside
        else:
            same = not expr.varies
        if same:
            found.add(expr)
    return found
