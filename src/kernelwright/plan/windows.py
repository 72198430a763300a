"""Rows that are windows: what those that a thread of a GPU takes together see in common.

In: a Program whose rows are short. Out: its Sight, where windows beside or below each other share
what they load. Along an axis windows lie some places apart, and so do their taps; so a box of
windows sees a box of places, each of which is loaded once. Padding is part of what is seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from kernelwright.expr import Expr, call, const, leaves, load, postorder
from kernelwright.graph import Dim, hint
from kernelwright.plan.model import Access, Coordinate, Program, Range, Stage

# Windows of a thread along an axis, for the question whether they share enough.
TOGETHER = 4
# The share of places that must be left for windows to be taken together.
WORTH = 0.85
# Loads of a thread: it takes several small windows even if they share nothing, to wait for all of
# them at once.
IN_FLIGHT = 32
# Windows that see the same place are at most so many apart, since a thread does not take more.
FARTHEST = 7
# Axes along which a thread has several windows.
MOST_AXES = 3
# Windows of a picture that are made in one walk through it: so many, those over all axes but the
# last, and at least so many elements of each.
MOST_LARGE, MOST_OVER, LEAST_ELEMENTS = 64, 25, 256


@dataclass(frozen=True)
class Axis:
    """An axis of places: `size` windows that are `step` apart, with `taps` that are `spread` apart.

    `row` and `tap` are the atoms that count these; None: there is one.
    """

    row: int | None
    tap: int | None
    size: int
    taps: int
    step: int
    spread: int

    @property
    def first(self) -> int:
        """The first place that the first window sees."""
        return min(0, self.spread * (self.taps - 1))

    def places(self, windows: int) -> int:
        """How many places so many windows see, with those between them."""
        return (windows - 1) * self.step + (self.taps - 1) * abs(self.spread) + 1

    def unit(self, at: Coordinate) -> int:
        """By how much a coordinate moves from a place to the next."""
        if self.row is not None and self.step:
            return _known(at.stride(self.row)) // self.step
        return _known(at.stride(self.tap)) // self.spread if self.tap is not None else 0


@dataclass(frozen=True)
class Sight:
    """What the windows of a program see: `axes` from the outermost in, windows along the last one.

    For each stage `seen` is what is at a place, and `weighed` what a window makes of that. `doubts`
    says that padding is multiplied there, which is right as long as all weights are finite.
    """

    axes: tuple[Axis, ...]
    seen: tuple[Expr, ...]
    weighed: tuple[Expr, ...]
    doubts: bool

    @property
    def weighs(self) -> bool:
        """Whether a place counts differently for each tap of some stage."""
        return self.weighed != self.seen

    def places(self) -> int:
        """How many all windows of a picture see."""
        return math.prod(a.places(a.size) for a in self.axes)

    def share(self) -> float:
        """What windows of a thread load together, over what each of them would alone."""
        taken = [(a, min(TOGETHER, a.size)) for a in self.axes]
        together = math.prod(a.places(n) for a, n in taken)
        return together / math.prod(n * a.taps for a, n in taken)


def is_window(program: Program) -> bool:
    """Whether rows begin within one another."""
    widest = _widest(program)
    if widest is None or not program.rows:
        return False
    steps = [widest.stride(a) for a in program.rows[-2:]]
    count = program.count(program.elements)
    return isinstance(count, int) and any(isinstance(s, int) and 0 < s < count for s in steps)


def taken_together(program: Program) -> Program | None:
    """The program as a thread takes several of its windows; None: it should take one by one."""
    if not is_window(program):
        return None
    few = hint(program.count(program.elements)) * TOGETHER <= IN_FLIGHT
    for turned in _turned(program):
        found = sight(turned)
        if found is not None and (few or found.share() <= WORTH):
            return replace(turned, strided=True, together=True)
    return None


def taken_whole(program: Program) -> Program | None:
    """The program, if all windows of a picture are made in one walk; None: one by one."""
    whole = replace(program, strided=True, together=True)
    return whole if is_window(program) and is_large(whole) else None


def is_large(program: Program) -> bool:
    """Whether windows are few and large, and look at most places of their picture."""
    elements = program.count(program.elements)
    if not program.together or not isinstance(elements, int) or elements < LEAST_ELEMENTS:
        return False
    found = sight(program) if len(program.stages) == 1 else None
    if found is None or found.weighs or found.doubts:
        return False
    if not all(a.row is not None and a.tap is not None and a.spread == 1 for a in found.axes):
        return False
    count = math.prod(a.size for a in found.axes)
    few = 1 < count <= MOST_LARGE and count // found.axes[-1].size <= MOST_OVER
    return few and 2 * found.places() <= count * elements


def beside(program: Program) -> int:
    """The axis of the rows along which threads that are neighbours lie: that of memory."""
    widest, last = _widest(program), program.rows[-1]
    near = [(hint(widest.stride(a)), a) for a in program.rows[-2:]] if widest is not None else []
    return min(((step, a) for step, a in near if step > 0), default=(0, last))[1]


def _turned(program: Program) -> Iterator[Program]:
    """The program itself, or with the last two axes of its rows the other way around.

    Lanes of a thread are then neighbours in what it stores, while threads are in what they load.
    Taps are in either order.
    """
    steps = [[s.access.stride(a) for a in program.rows[-2:]] for s in program.stores]
    if not steps or not all(len(s) == 2 and s[0] == 1 != s[1] for s in steps):
        yield program
        return
    turned = replace(program, rows=_swapped(program.rows))
    yield turned
    yield replace(turned, inner=_swapped(program.inner))


def sight(program: Program) -> Sight | None:
    """What windows along the last axes of the rows see in common; None: nothing that is known."""
    for count in range(min(MOST_AXES, len(program.rows)), 0, -1):
        own = program.rows[-count:]
        known = all(isinstance(program.sizes[a], int) for a in (*own, *program.elements))
        if known and beside(program) in own:
            found = _sight(program, own)
            if found is not None:
                return found
    return None


def _sight(program: Program, own: tuple[int, ...]) -> Sight | None:
    widest = _widest(program)
    whole = _axes(program, load(widest), own, set(own)) if widest is not None else None
    sliding = {a.row for a in whole or () if a.tap is not None and a.row is not None}
    if not sliding or (len(own) > 1 and own[0] not in sliding):
        return None
    looks = [_Look.of(program, stage, own, sliding) for stage in program.stages]
    axes = {look.axes for look in looks if look is not None}
    if None in looks or len(axes) != 1:
        return None
    (common,) = axes
    slid = {a.row for a in common if a.tap is not None and a.row is not None}
    if slid != sliding or common[-1].row != own[-1]:
        return None
    known = [look for look in looks if look is not None]
    doubts = any(look.doubts for look in known)
    seen, weighed = tuple(look.seen for look in known), tuple(look.weighed for look in known)
    return Sight(common, seen, weighed, doubts)


@dataclass(frozen=True)
class _Look:
    """The Sight of one stage."""

    axes: tuple[Axis, ...]
    seen: Expr
    weighed: Expr
    doubts: bool

    @staticmethod
    def of(program: Program, stage: Stage, own: tuple[int, ...], sliding: set[int]) -> _Look | None:
        weighed, doubts = _padded(stage, sliding)
        seen = weighed
        while True:
            axes = _axes(program, seen, own, sliding)
            if axes is not None:
                return _Look(axes, seen, weighed, doubts)
            moving = [a for a in dict.fromkeys(seen.args) if _moves(a, sliding)]
            if len(moving) != 1:
                return None
            (seen,) = moving


def _padded(stage: Stage, sliding: set[int]) -> tuple[Expr, bool]:
    """A stage's expression, in which padding is multiplied instead of left out; whether it is."""
    tests: list[Expr] = []
    inner, zero = stage.expr, const(0.0)
    while inner.op == "where" and inner.args[0].op == "inside" and inner.args[2] is zero:
        tests.append(inner.args[0])
        inner = inner.args[1]
    if not tests or inner.op != "mul" or stage.kind != "sum":
        return stage.expr, False
    value, weight = inner.args
    if _moves(weight, sliding):
        return stage.expr, False
    for test in reversed(tests):
        value = call("where", test, value, zero)
    return call("mul", value, weight), True


def resting(found: Sight, expr: Expr) -> list[Expr]:
    """The largest parts of what is seen that are the same wherever in a picture that is."""
    moving = {a for axis in found.axes for a in (axis.row, axis.tap) if a is not None}
    if not _moves(expr, moving):
        return [expr]
    return [part for arg in dict.fromkeys(expr.args) for part in resting(found, arg)]


def _places_of(expr: Expr) -> list[Coordinate]:
    """The places that an expression depends on."""
    found: list[Coordinate] = []
    for leaf in postorder(expr):
        if isinstance(leaf.value, Access):
            found += [leaf.value.at, *(r.at for r in leaf.value.within)]
        elif isinstance(leaf.value, Range):
            found.append(leaf.value.at)
        elif isinstance(leaf.value, Coordinate):
            found.append(leaf.value)
    return list(dict.fromkeys(found))


def _moves(expr: Expr, sliding: set[int]) -> bool:
    """Whether it differs between windows that see the same places."""
    return any(at.atoms & sliding for at in _places_of(expr))


def _axes(
    program: Program, expr: Expr, own: tuple[int, ...], sliding: set[int]
) -> tuple[Axis, ...] | None:
    """The axes by which windows and taps move in an expression; None: it has no such axes.

    Every tap is paired with the rows that move along the same axis, if there are any. What taps
    read wherever along `sliding` rows their window is, such as a weight, is not at a place.
    """
    atoms = {*own, *program.elements}
    reads = [leaf.value.atoms for leaf in leaves(expr, "load") if isinstance(leaf.value, Access)]
    if any(read & set(program.elements) and not read & sliding for read in reads):
        return None
    places = [at for at in _places_of(expr) if at.atoms & atoms]
    strides = {a: [at.stride(a) for at in places] for a in atoms}
    if leaves(expr, "acc") or not all(isinstance(s, int) for row in strides.values() for s in row):
        return None
    known = {a: [_known(s) for s in row] for a, row in strides.items()}
    left, found = list(own), []
    for tap in program.elements:
        taps = _known(program.sizes[tap])
        pairs = [p for row in left if (p := _pair(program, known, row, tap)) is not None]
        best = min(pairs, key=lambda a: a.places(min(TOGETHER, a.size)), default=None)
        if best is None and any(known[tap]):
            best = Axis(None, tap, 1, taps, 0, 1)
        found.append(best or Axis(None, tap, 1, taps, 0, 0))
        if best is not None and best.row is not None:
            left.remove(best.row)
    axes = _in_order(program, found, own, known)
    return axes if axes is None or _independent(axes, own, known) else None


def _pair(program: Program, known: dict[int, list[int]], row: int, tap: int) -> Axis | None:
    """The axis along which windows and taps both move; None: they go different ways."""
    pairs = [(r, t) for r, t in zip(known[row], known[tap], strict=True) if r or t]
    if not pairs or not all(r > 0 and t for r, t in pairs):
        return None
    step, spread = pairs[0]
    common = math.gcd(step, spread)
    step, spread = step // common, spread // common
    if any(r * spread != t * step for r, t in pairs) or abs(spread) > FARTHEST:
        return None
    size, taps = (_known(program.sizes[a]) for a in (row, tap))
    return Axis(row, tap, size, taps, step, spread)


def _in_order(
    program: Program, found: list[Axis], own: tuple[int, ...], known: dict[int, list[int]]
) -> tuple[Axis, ...] | None:
    """All axes in the order of the rows and of the taps, which must agree."""
    paired = {a.row: a for a in found}
    axes, place = list(found), 0
    for row in own:
        axis = paired.get(row)
        if axis is None:
            moves = int(any(known[row]))
            axis = Axis(row, None, _known(program.sizes[row]), 1, moves, 0)
            place = len(axes) if row == own[-1] else place
            axes.insert(place, axis)
        if axes.index(axis) < place:
            return None
        place = axes.index(axis) + 1
    return tuple(axes)


def _independent(axes: tuple[Axis, ...], own: tuple[int, ...], known: dict[int, list[int]]) -> bool:
    """Whether every window and every tap counts in one axis."""
    rows = [a.row for a in axes if a.row is not None]
    return sorted(rows) == sorted(own) and all(min(known[row], default=0) >= 0 for row in own)


def _swapped(atoms: tuple[int, ...]) -> tuple[int, ...]:
    return (*atoms[:-2], *reversed(atoms[-2:]))


def _widest(program: Program) -> Access | None:
    return max(program.loads, key=lambda a: len(a.atoms), default=None)


def _known(number: Dim) -> int:
    assert isinstance(number, int)
    return number
