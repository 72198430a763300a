"""A kernel's program on the tiles of a convolution: what a tile does, and what follows.

In: a Walk (walks.py) and a box of the result [sample][channel][depth][height][width], which a tile
holds in shared memory. Out: the tile's own Program, and where rows go on in other tiles one that
puts their parts together (`finish`). The box cuts each digit, and so the loop nest, into an outer
part, which is the number of the tile, and an inner one, which its threads walk in any order.

A row that no tile holds whole leaves one partial result for each tile. Where a second reduction
waits for the first (the squares around a mean, the exponentials below a maximum), each tile takes
its own first result, and the finish brings them to the common one: nothing is lost for large means.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from kernelwright.expr import Expr, acc, call, const, index, leaves, load, substitute
from kernelwright.graph import Dim, as_dim, fresh_name, product
from kernelwright.plan.epilogue import Unfit, centred, merged, rescale, rescaled
from kernelwright.plan.model import Access, Buffer, Coordinate, Program, Range, Stage, Store
from kernelwright.plan.reasons import Code
from kernelwright.plan.walks import CHANNEL, SAMPLE, Digit, Move, Walk, moved, rebuilt

Box = tuple[int, int, int, int, int]


@dataclass(frozen=True)
class TileAtom:
    """An atom of a program that the number of the tile decides: its place / unit, modulo size."""

    atom: int
    axis: int
    unit: int
    size: Dim | None


@dataclass(frozen=True)
class Tiled:
    """What each tile runs, and what puts the rows together that no tile holds whole.

    Rows of the epilogue are those of one tile, for each of the `outside` atoms. The value of the
    convolution is read by strides into the tile, first as `given`, and in other channels too
    (`beside`). A row outside of the ranges `rows` is none, an
    element outside of `elements` counts for nothing; a tile outside of `live` has nothing to do.
    """

    epilogue: Program
    given: Access
    outside: tuple[TileAtom, ...]
    rows: tuple[Range, ...]
    elements: tuple[Range, ...]
    live: tuple[Range, ...]
    finish: Program | None = None
    partials: tuple[Buffer, ...] = ()
    beside: tuple[Access, ...] = ()

    @property
    def reads(self) -> tuple[Access, ...]:
        return self.given, *self.beside

    @property
    def local_rows(self) -> tuple[int, ...]:
        outside = {t.atom for t in self.outside}
        return tuple(a for a in self.epilogue.rows if a not in outside)


# ---- tiles -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Cut:
    """A digit in a tile: `outside` of it the number of the tile decides, `inside` threads walk.

    `parts` is how many tiles the digit has, `extent` how many of its places one of them, `ends`
    whether it is over before the tiles are. A tile's number for it counts in `unit` places.
    """

    digit: Digit
    outside: int | None
    inside: int | None
    extent: int
    parts: Dim
    unit: int
    first: bool
    ends: bool

    @property
    def tile_atom(self) -> TileAtom | None:
        if self.outside is None:
            return None
        return TileAtom(
            self.outside, self.digit.axis, self.unit, None if self.first else self.parts
        )

    def place(self, *, inside: bool = True) -> Coordinate:
        """The digit's value; without what is inside, that of the tile's first."""
        terms = [(self.outside, self.extent), (self.inside if inside else None, 1)]
        return Coordinate(tuple(sorted((a, s) for a, s in terms if a is not None)))

    def mask(self, *, inside: bool = True) -> Range | None:
        """Where the digit ends before the tiles do."""
        return Range(self.place(inside=inside), 0, self.digit.size) if self.ends else None


def tiled(walk: Walk, box: Box, pitch: int, taken: set[str]) -> Tiled:
    """The walk on tiles of a box, whose channels lie `pitch` apart; raises Unfit.

    `taken` are names that new buffers must not have.
    """
    cuts = _cuts(walk, box)
    if is_split(walk, box):
        return _in_parts(walk, cuts, _strides(box, pitch), taken)
    return _whole(walk, cuts, _strides(box, pitch), walk.program)


def is_split(walk: Walk, box: Box) -> bool:
    """Whether rows go on in other tiles; raises Unfit if the program cannot be cut so."""
    split = any(c.outside is not None and c.digit.atom in walk.reduced for c in _cuts(walk, box))
    if split and (walk.program.segmented or walk.local):
        raise Unfit(Code.TILE)
    if split:
        check_parts(walk)
    return split


def _cuts(walk: Walk, box: Box) -> list[_Cut]:
    if not walk.has_own and box[CHANNEL] < walk.extents[CHANNEL]:
        raise Unfit(Code.TILE)
    found: list[_Cut] = []
    fresh = 1 + max(walk.program.sizes, default=0)
    for axis, extent in enumerate(box):
        digits = walk.of(axis)
        whole = axis != SAMPLE and extent >= int(str(walk.extents[axis]))
        for i, digit in enumerate(digits):
            parts: Dim = 1
            local, unit, ends = 1, digit.step, False
            if whole:
                local = int(str(digit.size))
            elif axis != SAMPLE and extent % digit.step == 0:
                whole = True
                local, unit = extent // digit.step, extent
                if i == 0:
                    parts, local, ends = _first(digit, local, int(str(walk.extents[axis])), extent)
                else:
                    parts = _inner(digits[i - 1], digit, local)
            elif digit.step % extent == 0:
                parts = digit.size
            else:
                raise Unfit(Code.TILE)
            outside = fresh if parts != 1 or ends else None
            inside = fresh + 1 if local != 1 else None
            found.append(_Cut(digit, outside, inside, local, parts, unit, i == 0, ends))
            fresh += 2
    return found


def _first(digit: Digit, local: int, axis: int, extent: int) -> tuple[int, int, bool]:
    """Of an outermost digit: how many tiles, places in each, and whether it ends before they do."""
    size = int(str(digit.size))
    local = min(local, size)
    parts = -(-size // local)
    return parts, local, size % local != 0 or parts < -(-axis // extent)


def _inner(outer: Digit, digit: Digit, local: int) -> int:
    """The same of an inner digit, which must begin and end where tiles do."""
    size = int(str(digit.size))
    if size % local or outer.step != digit.step * size:
        raise Unfit(Code.TILE)
    return size // local


def _strides(box: Box, pitch: int) -> tuple[int, ...]:
    """Of the five axes in a tile."""
    _, _, _, height, width = box
    return 0, pitch, height * width, width, 1


def _whole(walk: Walk, cuts: list[_Cut], strides: tuple[int, ...], program: Program) -> Tiled:
    """Each row is complete in one tile."""
    by_atom = {c.digit.atom: c for c in cuts}
    if not program.stages:
        places = tuple(c.digit.atom for c in cuts if c.digit.axis > CHANNEL)
        channels = tuple(c.digit.atom for c in cuts if c.digit.axis <= CHANNEL)
        program = replace(program, rows=channels, outer=(), inner=places)
    return _tile_program(walk, program, by_atom, strides)


def _tile_program(
    walk: Walk, program: Program, cuts: dict[int, _Cut], strides: tuple[int, ...]
) -> Tiled:
    """The program over the atoms of tiles, for tiles that hold its rows whole."""
    order = {d.atom: i for i, d in enumerate(walk.digits)}

    def inside(atoms: tuple[int, ...]) -> tuple[int, ...]:
        found = [cuts[a].inside for a in sorted(atoms, key=order.__getitem__)]
        return tuple(a for a in found if a is not None)

    sizes: dict[int, Dim] = {}
    for c in cuts.values():
        sizes |= {c.outside: c.parts} if c.outside is not None else {}
        sizes |= {c.inside: c.extent} if c.inside is not None else {}
    outside = [t for a in order if (t := cuts[a].tile_atom) is not None]
    shared = {c.inside: c.digit.step * strides[c.digit.axis] for c in cuts.values()}
    at = Coordinate(tuple(sorted((a, s) for a, s in shared.items() if a is not None)))
    reads = [Access(walk.value, replace(at, offset=n * strides[CHANNEL])) for n in walk.reads]
    epilogue = replace(
        moved(program, _cutting(cuts)),
        sizes=sizes,
        rows=(*(t.atom for t in outside), *inside(program.rows)),
        outer=inside(program.outer),
        inner=inside(program.inner),
        strided=False,
        together=False,
    )
    epilogue = _reading(epilogue, walk, reads)
    rows = [cuts[a].mask() for a in program.rows]
    elements = [cuts[a].mask() for a in program.elements]
    live = [c.mask(inside=False) for c in cuts.values()]
    return Tiled(
        epilogue,
        reads[0],
        tuple(outside),
        tuple(r for r in rows if r is not None),
        tuple(r for r in elements if r is not None),
        tuple(r for r in live if r is not None),
        beside=tuple(reads[1:]),
    )


def _cutting(cuts: dict[int, _Cut]) -> Move:
    """Digits as what is outside of a tile and what is inside; other atoms stay as they are."""

    def move(at: Coordinate) -> Coordinate:
        found: dict[int, Dim] = {}
        for atom, stride in at.strides:
            if atom not in cuts:
                found[atom] = stride
                continue
            for part, times in cuts[atom].place().strides:
                found[part] = as_dim(stride * times)
        return Coordinate(tuple(sorted(found.items())), at.offset)

    return move


def _reading(program: Program, walk: Walk, reads: list[Access]) -> Program:
    """The program with the convolution's result read from the tile."""
    channel = math.prod(walk.extents[CHANNEL + 1 :])
    offsets: list[Dim] = [n * channel for n in walk.reads]

    def leaf(expr: Expr) -> Expr | None:
        if not isinstance(expr.value, Access) or expr.value.buffer != walk.value:
            return None
        return load(reads[offsets.index(expr.value.offset)])

    return rebuilt(program, leaf)


# ---- rows in parts ---------------------------------------------------------------------------


def _in_parts(walk: Walk, cuts: list[_Cut], strides: tuple[int, ...], taken: set[str]) -> Tiled:
    """Each tile stores a partial result for each of its channels; the finish combines them."""
    program = walk.program
    by_atom = {c.digit.atom: c for c in cuts}
    elements = [by_atom[a] for a in program.elements]
    channels = tuple(c.digit.atom for c in elements if c.digit.axis <= CHANNEL)
    places = tuple(c.digit.atom for c in elements if c.digit.axis > CHANNEL)
    parts, near = _parts(walk, by_atom)
    order = list(parts)
    steps = {a: product([parts[b] for b in order[i + 1 :]]) for i, a in enumerate(order)}
    place = Coordinate(tuple(sorted(steps.items())))
    kept = [i for i in range(len(program.stages)) if not _vanishes(program, i)]
    names = {i: fresh_name(f"{program.stages[i].name}_partials", taken) for i in kept}
    partials = tuple(Buffer(n, tuple(parts.values()), torch.float32) for n in names.values())
    count = _count([by_atom[a] for a in places])
    results = {i: acc(k) for k, i in enumerate(kept)}
    stages = [_renumbered(_own(program, i, count), results) for i in kept]
    early = [s for s in program.stores if s.level != "row"]
    stored = [Store(results[i], Access(name, place), "row") for i, name in names.items()]
    first = replace(
        program,
        rows=(*program.rows, *channels),
        inner=places,
        stages=tuple(stages),
        stores=(*early, *stored),
    )
    made = _tile_program(walk, first, by_atom, strides)
    over = tuple(a for a in order if a not in program.rows)
    finish = _finish(program, over, parts, {i: Access(n, place) for i, n in names.items()}, count)
    return replace(made, finish=replace(finish, strided=near), partials=partials)


def _parts(walk: Walk, cuts: dict[int, _Cut]) -> tuple[dict[int, Dim], bool]:
    """The axes of the partial results in the order of memory, and whether rows lie side by side.

    A tile stores its rows at once: those that are places come last, where they are neighbours as in
    the tile (one number of each tile side by side would cost a sector for every number). Other rows
    are few, and lie with those of all tiles together, as the finish reads them.
    """
    program = walk.program
    near = [a for a in program.rows if a in cuts and cuts[a].digit.axis > CHANNEL]
    of_elements = [cuts[a] for a in program.elements]
    channels = [c.digit.atom for c in of_elements if c.digit.axis <= CHANNEL]
    tiles = {c.outside: c.parts for c in of_elements if c.digit.axis > CHANNEL}
    far = [a for a in (*program.rows, *channels) if a not in near]
    parts: dict[int, Dim] = {a: program.sizes[a] for a in far}
    parts |= {a: count for a, count in tiles.items() if a is not None}
    return parts | {a: program.sizes[a] for a in near}, bool(near)


def partial_results(walk: Walk, box: Box) -> Dim:
    """How many numbers tiles of a box leave for the finish; raises Unfit as `is_split` does."""
    if not is_split(walk, box):
        return 0
    parts, _ = _parts(walk, {c.digit.atom: c for c in _cuts(walk, box)})
    kept = sum(not _vanishes(walk.program, i) for i in range(len(walk.program.stages)))
    return product([kept, *parts.values()])


def check_parts(walk: Walk) -> None:
    """Raise Unfit if a row in several tiles would have to be whole before it can go on."""
    if not walk.local and awaits_rows(walk.program):
        raise Unfit(Code.WHOLE_ROW)


def awaits_rows(program: Program) -> bool:
    """Whether something goes on when a row is done that cannot with a part of it."""
    if any(s.expr.awaits >= 0 for s in program.stores if s.level != "row"):
        return True
    return any(_awaits_row(program, i) for i in range(len(program.stages)))


def _awaits_row(program: Program, i: int) -> bool:
    if program.stages[i].expr.awaits < 0:
        return False
    return merged(program, i) is None and rescaled(program, i) is None


def _count(cuts: list[_Cut]) -> Expr:
    """The places that one tile adds to a row."""
    found = const(float(math.prod(c.extent for c in cuts if c.outside is None or not c.ends)))
    for c in cuts:
        if c.outside is not None and c.ends:
            left = call("sub", const(float(int(str(c.digit.size)))), index(c.place(inside=False)))
            found = call("mul", found, call("minimum", const(float(c.extent)), left))
    return found


def _own(program: Program, i: int, count: Expr) -> Stage:
    """A stage over one tile: what it waits for is the tile's own."""
    stage = program.stages[i]
    mean = merged(program, i)
    if mean is not None:
        apart = call("sub", program.stages[mean].expr, call("div", acc(mean), count))
        return replace(stage, expr=_as_in(stage, apart))
    if _awaits_row(program, i):
        raise Unfit(Code.WHOLE_ROW)
    return stage


def _vanishes(program: Program, i: int) -> bool:
    """Whether a tile has nothing to add: the sum around its own mean, but for rounding."""
    stage = program.stages[i]
    return merged(program, i) is not None and centred(stage) is stage.expr


def _renumbered(stage: Stage, results: dict[int, Expr]) -> Stage:
    """The stage, of which some before it are left out."""

    def leaf(e: Expr) -> Expr | None:
        return results[int(str(e.value))] if e.op == "acc" else None

    return replace(stage, expr=substitute(stage.expr, leaf))


def _as_in(stage: Stage, apart: Expr) -> Expr:
    """Squared, if the stage sums squares."""
    return apart if centred(stage) is stage.expr else call("square", apart)


def _finish(
    program: Program,
    over: tuple[int, ...],
    sizes: dict[int, Dim],
    parts: dict[int, Access],
    count: Expr,
) -> Program:
    """One element for each part of a row: the same reductions once more, then the rows' stores."""
    stages = []
    for i, stage in enumerate(program.stages):
        expr = load(parts[i]) if i in parts else const(0.0)
        largest, mean = rescaled(program, i), merged(program, i)
        if mean is not None:
            _, whole = centred(stage).args
            apart = call("sub", call("div", load(parts[mean]), count), whole)
            more = call("mul", count, _as_in(stage, apart))
            expr = call("add", expr, more) if i in parts else more
        if largest is not None:
            expr = rescale(expr, load(parts[largest]), acc(largest))
        stages.append(Stage(stage.name, stage.kind, expr, False))
    stores = tuple(s for s in program.stores if s.level == "row")
    uniform = {e: n for e, n in program.labels.items() if not leaves(e, "load")}
    return Program(sizes, program.rows, (), over, tuple(stages), stores, False, uniform)
