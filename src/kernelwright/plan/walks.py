"""A kernel's program over the result of a convolution, axis by axis.

In: a Program, and the form of the convolution whose result it reads. Out: the same program as a
Walk, each of whose atoms is a digit of one axis of the result [sample][channel][depth][height]
[width]: it walks it with a step, as the places of a pooling window do, or those from window to
window. An atom that runs from one axis into the next is cut in two. What walks otherwise is Unfit.

A program may read several channels of the result for each element, as one does that gates a half
of them by the other: accesses that are a number of channels apart. Tiles then have all channels.

Windows of a max pool may overlap, or reach beyond the result. Such a Walk has a Pool, and its
program is that of the places which exist: outside of the result there is nothing to be larger.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise

from kernelwright.expr import Expr, const, index, leaves, load, postorder, substituted
from kernelwright.expr import inside as inside_range
from kernelwright.graph import Dim, Graph, as_dim, product, quotient
from kernelwright.plan.convolutions import ConvForm, Extents
from kernelwright.plan.epilogue import Unfit
from kernelwright.plan.model import Access, Coordinate, Program, Range
from kernelwright.plan.reasons import Code

SAMPLE, CHANNEL = 0, 1
AXES = ("sample", "channel", "z", "y", "x")
PLACES = (2, 3, 4)
PLACED = ("load", "index", "inside")  # leaves that may differ from place to place
Move = Callable[[Coordinate], Coordinate]
Scales = frozenset[str]


@dataclass(frozen=True)
class Digit:
    """An atom that walks an axis of the result with a step."""

    atom: int
    axis: int
    step: int
    size: Dim


@dataclass(frozen=True)
class Pool:
    """Windows along the three axes: `count` of them, each of `window` places, `step` apart.

    The first begins `before` the first place.
    """

    window: Extents
    step: Extents
    before: Extents
    count: Extents

    @cached_property
    def overlap(self) -> Extents:
        """Places that a window shares with the next one."""
        z, y, x = (size - step for size, step in zip(self.window, self.step, strict=True))
        return z, y, x


def side_by_side(window: Extents, places: Extents) -> Pool:
    """Windows that neither overlap nor leave gaps, as many as there is room for."""
    z, y, x = (n // size for n, size in zip(places, window, strict=True))
    return Pool(window, window, (0, 0, 0), (z, y, x))


@dataclass(frozen=True)
class Walk:
    """A program each of whose atoms is a digit of one axis; outer digits of an axis come first.

    `scales` are operands that a norm is scaled by: reciprocals of square roots. `pool`: the digits
    walk windows that overlap or reach beyond the result. `reads` are the channels that an element
    reads, counted from where its digits are.
    """

    program: Program
    value: str
    digits: tuple[Digit, ...]
    extents: tuple[Dim, int, int, int, int]
    scales: Scales
    pool: Pool | None = None
    reads: tuple[int, ...] = (0,)

    @property
    def has_own(self) -> bool:
        """Whether each element reads the result at its own place alone."""
        return self.reads == (0,)

    def is_read_by(self, expr: Expr) -> bool:
        accesses = [leaf.value for leaf in leaves(expr, "load")]
        return any(isinstance(a, Access) and a.buffer == self.value for a in accesses)

    def of(self, axis: int) -> list[Digit]:
        return [d for d in self.digits if d.axis == axis]

    @property
    def reduced(self) -> frozenset[int]:
        """The atoms that rows are reduced over."""
        return frozenset(self.program.elements) if self.program.stages else frozenset()

    @property
    def local(self) -> bool:
        """Whether tiles with enough channels hold whole rows: what is reduced is no whole space.

        Those are channels, and places inside of a window.
        """
        others = [self.of(axis) for axis in range(len(AXES)) if axis != CHANNEL]
        return not any(digits[0].atom in self.reduced for digits in others if digits)

    @property
    def over_places(self) -> bool:
        """Whether all stages go over all places of a channel, and no place differs from another.

        Elements that are stored may tell places apart, but wait for no stage.
        """
        places = [self.of(axis) for axis in range(CHANNEL + 1, len(AXES))]
        whole = all(
            len(digits) == 1 and digits[0].step == 1 and digits[0].size == extent
            for digits, extent in zip(places, self.extents[CHANNEL + 1 :], strict=True)
            if extent != 1
        )
        atoms = {digit.atom for digits in places for digit in digits}
        if not atoms or not whole or not atoms <= self.reduced or self.program.segmented:
            return False
        if not self.has_own:
            return False
        stored = [s.expr for s in self.program.stores if s.level != "row"]
        if any(expr.awaits >= 0 for expr in stored):
            return False
        reached = postorder(*(stage.expr for stage in self.program.stages))
        return all(self._alike(leaf, atoms) for leaf in reached if leaf.op in PLACED)

    @property
    def over_channels(self) -> bool:
        """Whether all stages go over all channels of a place, and each place is a row of its own.

        Then rows and elements are counted as places and channels are.
        """
        channels = {digit.atom for digit in self.of(CHANNEL)}
        counted = all(self._counted(axis) for axis in range(CHANNEL, len(AXES)))
        alone = self.has_own and not self.program.segmented
        return bool(channels) and self.reduced == channels and counted and alone

    def _counted(self, axis: int) -> bool:
        """Whether the digits of an axis are together the number of a place: no gaps, no end."""
        walked = 1
        for digit in reversed(self.of(axis)):
            if digit.step != walked:
                return False
            walked *= int(str(digit.size))
        return walked == self.extents[axis]

    def _alike(self, leaf: Expr, atoms: set[int]) -> bool:
        """Whether a leaf is the same for all places, or is the convolution's result."""
        of = leaf.value
        if isinstance(of, Access):
            return of.buffer == self.value or not (of.atoms & atoms or of.within)
        at = of.at if isinstance(of, Range) else of
        return isinstance(at, Coordinate) and not at.atoms & atoms

    @property
    def needs(self) -> Needs:
        multiple = [max([d.step for d in self.of(axis)], default=1) for axis in (2, 3, 4)]
        channels = [d for d in self.of(CHANNEL) if d.atom in self.reduced]
        together = 1
        if self.local and channels:
            together = int(str(channels[0].step * channels[0].size))
        if not self.has_own:
            together = self.extents[CHANNEL]
        return Needs(together, (multiple[0], multiple[1], multiple[2]))


@dataclass(frozen=True)
class Needs:
    """What a tile must hold: so many channels together, multiples of so many places each way."""

    channels: int
    multiple: tuple[int, int, int]


def walk(program: Program, value: str, form: ConvForm, graph: Graph) -> Walk:
    """The program with its atoms cut where they run from one axis of the result into the next."""
    scales = frozenset(a.buffer for a in program.loads if _is_scale(graph, a.buffer))
    order = (*program.sizes, *program.labels)
    found = _known(program, order, value, form, scales)
    if isinstance(found, Code):
        raise Unfit(found)
    return found


@lru_cache(maxsize=1024)
def _known(
    program: Program, _order: tuple[int | Expr, ...], value: str, form: ConvForm, scales: Scales
) -> Walk | Code:
    """The walk, or why there is none; a planner asks the same again and again.

    Programs whose tables are equal but in another order are others.
    """
    try:
        return _walked(program, value, form, scales)
    except Unfit as unfit:
        return unfit.code


def _walked(program: Program, value: str, form: ConvForm, scales: Scales) -> Walk:
    extents = (form.batch, form.cout, *form.out_size)
    program = joined(program) if program.stages else program
    while True:
        accesses = [a for a in program.loads if a.buffer == value]
        alike = len({a.at.strides for a in accesses}) == 1
        if not alike or accesses[0].atoms != frozenset(program.sizes):
            raise Unfit(Code.WALKS)
        access = accesses[0]
        found = [_digit(a, s, program.sizes[a], extents) for a, s in access.strides]
        crosses = next((f for f in found if isinstance(f, tuple)), None)
        if crosses is None:
            break
        program = split(program, *crosses)
    digits = [d for d in found if isinstance(d, Digit)]
    digits.sort(key=lambda d: (d.axis, -d.step))
    made = Walk(program, value, tuple(digits), extents, scales)
    for axis, extent in enumerate(extents):
        _check_axis(made.of(axis), extent)
    overlapping = any(_overlap(made.of(axis)) for axis in range(len(AXES)))
    if not overlapping and (reads := _channels_read(made, accesses)):
        return replace(made, reads=reads)
    pool = _pool(made, access) if len(accesses) == 1 else None
    if pool is None:
        raise Unfit(Code.OVERLAP if overlapping else Code.WALKS)
    return replace(made, program=_of_places(program, access), pool=pool)


def _is_scale(graph: Graph, name: str) -> bool:
    made = graph[graph.base(name)] if name in graph.by_name else None
    return made is not None and isinstance(made.payload, Expr) and made.payload.op == "rsqrt"


def _digit(atom: int, stride: Dim, size: Dim, extents: tuple[Dim, ...]) -> Digit | tuple[int, int]:
    """Which axis an atom walks; or the atom, and its inner part that stays inside of the axis."""
    if not isinstance(stride, int):
        raise Unfit(Code.WALKS)
    unit = 1
    for axis in reversed(range(1, len(AXES))):
        extent = int(str(extents[axis]))
        limit = unit * extent
        if extent > 1 and stride < limit:
            if stride % unit:
                raise Unfit(Code.WALKS)
            if isinstance(size, int) and (size - 1) * stride < limit:
                return Digit(atom, axis, stride // unit, size)
            if limit % stride or quotient(size, limit // stride) is None:
                raise Unfit(Code.WALKS)
            return atom, limit // stride
        unit = limit
    if stride % unit:
        raise Unfit(Code.WALKS)
    return Digit(atom, SAMPLE, stride // unit, size)


def _check_axis(digits: list[Digit], extent: Dim) -> None:
    """Somebody walks the axis, and all of it if nobody knows how long it is."""
    if not digits and extent != 1:
        raise Unfit(Code.WALKS)
    if not isinstance(extent, int) and product([d.size for d in digits]) != extent:
        raise Unfit(Code.WALKS)


def _channels_read(walk: Walk, accesses: list[Access]) -> tuple[int, ...]:
    """The channels that an element reads, from that of its digits; none if these are not all."""
    _, channels, *places = walk.extents
    last = sum(d.step * (int(str(d.size)) - 1) for d in walk.of(CHANNEL))
    found = []
    for access in accesses:
        channel = quotient(access.offset, math.prod(places))
        if not isinstance(channel, int) or access.within or not 0 <= channel < channels - last:
            return ()
        found.append(channel)
    return tuple(sorted(found))


# ---- windows that overlap or reach beyond the result -----------------------------------------


def _overlap(digits: list[Digit]) -> bool:
    return any(
        not isinstance(inner.size, int) or outer.step < inner.step * inner.size
        for outer, inner in pairwise(digits)
    )


def _pool(walk: Walk, access: Access) -> Pool | None:
    """The windows of places that a walk sees; None where they are not those of a pool."""
    asked = [
        [r for r in access.within if r.at.atoms & {d.atom for d in walk.of(axis)}]
        for axis in PLACES
    ]
    slides = [_slide(walk, *of) for of in zip(PLACES, asked, strict=True)]
    known = [slide for slide in slides if slide is not None]
    strange = sum(map(len, asked)) != len(access.within) or len(known) != len(slides)
    if strange or any(_overlap(walk.of(axis)) for axis in (SAMPLE, CHANNEL)):
        return None
    window, step, before, count = zip(*known, strict=True)
    _, height, width = walk.extents[CHANNEL + 1 :]
    first = (before[0] * height + before[1]) * width + before[2]
    return Pool(window, step, before, count) if access.offset == -first else None


def _slide(walk: Walk, axis: int, asked: list[Range]) -> tuple[int, int, int, int] | None:
    """Window, step, places before the first one, and count, along one axis.

    None where places are left out, at the begin or between windows.
    """
    digits, extent = walk.of(axis), int(str(walk.extents[axis]))
    if all(d.atom not in walk.reduced for d in digits):
        whole = not asked and all(d.step == 1 and d.size == extent for d in digits)
        return (1, 1, 0, extent) if whole and len(digits) <= 1 else None
    if len(digits) != 2 or digits[0].atom in walk.reduced or digits[1].step != 1:
        return None
    outer, inner = digits
    window, count = (int(str(d.size)) for d in digits[::-1])
    before = 0
    for limit in asked:
        whole = limit.low in (0, None) and limit.high in (extent, None)
        if not whole or dict(limit.at.strides) != {outer.atom: outer.step, inner.atom: 1}:
            return None
        before = -int(str(limit.at.offset))
    leaves_out = window < outer.step or before < 0
    return None if leaves_out else (window, outer.step, before, count)


def _of_places(program: Program, access: Access) -> Program:
    """The program without its questions whether a place of a window exists."""
    first, *others = program.stages
    expr, asked = first.expr, []
    while expr.op == "where" and expr.args[2] == const(-math.inf):
        asked.append(expr.args[0].value)
        expr = expr.args[1]
    bare = load(Access(access.buffer, Coordinate(access.at.strides)))
    found = rebuilt(
        replace(program, stages=(replace(first, expr=expr), *others)),
        lambda e: bare if e.value == access else None,
    )
    if set(asked) != set(access.within) or any(leaves(e, "inside") for e in found.exprs):
        raise Unfit(Code.WALKS)
    return found


def split(program: Program, atom: int, inner: int) -> Program:
    """The program with an atom cut in two."""
    outer_part, inner_part = (1 + max(program.sizes) + i for i in (0, 1))

    def move(at: Coordinate) -> Coordinate:
        step = at.stride(atom)
        kept = [(a, s) for a, s in at.strides if a != atom]
        if atom in at.atoms:
            kept += [(outer_part, as_dim(step * inner)), (inner_part, step)]
        return Coordinate(tuple(sorted(kept)), at.offset)

    def parts(atoms: tuple[int, ...]) -> tuple[int, ...]:
        pair = (outer_part, inner_part)
        return tuple(p for a in atoms for p in (pair if a == atom else (a,)))

    outer_size = quotient(program.sizes[atom], inner)
    assert outer_size is not None
    sizes = {a: s for a, s in program.sizes.items() if a != atom}
    sizes |= {outer_part: outer_size, inner_part: inner}
    return replace(
        moved(program, move),
        sizes=sizes,
        rows=parts(program.rows),
        outer=parts(program.outer),
        inner=parts(program.inner),
    )


def joined(program: Program) -> Program:
    """The same with neighbouring axes joined that are one everywhere: others parted them."""
    for axes in (program.rows, program.outer, program.inner):
        for outer, inner in pairwise(axes):
            high, low = program.sizes[outer], program.sizes[inner]
            if not isinstance(high, int) or not isinstance(low, int):
                continue
            if all(at.stride(outer) == at.stride(inner) * low for at in program.coordinates):
                return joined(_joined(program, outer, inner, high * low))
    return program


def _joined(program: Program, outer: int, inner: int, size: int) -> Program:
    def move(at: Coordinate) -> Coordinate:
        return Coordinate(tuple((a, s) for a, s in at.strides if a != outer), at.offset)

    def fewer(atoms: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(a for a in atoms if a != outer)

    return replace(
        moved(program, move),
        sizes={a: s for a, s in program.sizes.items() if a != outer} | {inner: size},
        rows=fewer(program.rows),
        outer=fewer(program.outer),
        inner=fewer(program.inner),
    )


def moved(program: Program, move: Move) -> Program:
    """The same program with every coordinate in it expressed by other atoms."""
    made = rebuilt(program, lambda e: _moved_leaf(e, move))
    stores = tuple(replace(s, access=_moved_access(s.access, move)) for s in made.stores)
    return replace(made, stores=stores)


def rebuilt(program: Program, leaf: Callable[[Expr], Expr | None]) -> Program:
    """The same program with some leaves of its expressions replaced."""

    exprs = [*(s.expr for s in program.stages), *(s.expr for s in program.stores)]
    made = iter(substituted([*exprs, *program.labels], leaf))
    return replace(
        program,
        stages=tuple(replace(s, expr=next(made)) for s in program.stages),
        stores=tuple(replace(s, expr=next(made)) for s in program.stores),
        labels=dict(zip(made, program.labels.values(), strict=True)),
    )


def _moved_leaf(expr: Expr, move: Move) -> Expr | None:
    if isinstance(expr.value, Access):
        return load(_moved_access(expr.value, move))
    if isinstance(expr.value, Range):
        return inside_range(replace(expr.value, at=move(expr.value.at)))
    if expr.op == "index" and isinstance(expr.value, Coordinate):
        return index(move(expr.value))
    return None


def _moved_access(access: Access, move: Move) -> Access:
    within = tuple(replace(r, at=move(r.at)) for r in access.within)
    return Access(access.buffer, move(access.at), within)
