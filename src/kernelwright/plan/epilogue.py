"""A kernel's program in the epilogue of a product: whether it fits, and in which two parts it runs.

The product comes in tiles of a few whole segments of columns, each in registers once. So elements
and segments can be stored at once, but a row is complete only when its last tile is: a reduction
over rows is stored as a partial result for each tile, and a small program combines these.

    fit        Program over any axes -> the same over rows x columns of the product, or Unfit
    stored     the Program of a product that nothing follows
    decompose  that Program -> what the tiles do (epilogue), what follows (finish)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from kernelwright.expr import Expr, acc, call, const, leaves, load, substitute
from kernelwright.graph import Dim, Shape, as_dim, fresh_name, hint, product
from kernelwright.plan.domain import Atoms, flat
from kernelwright.plan.model import (
    Access,
    Buffer,
    Coordinate,
    Program,
    Stage,
    Store,
    stage_of_mean,
)
from kernelwright.plan.reasons import Code

# The lanes that share a row of the accumulators hold eight neighbours between them.
SEGMENT_MULTIPLE = 8


class Unfit(Exception):
    """A program cannot run in an epilogue; carries the code of the reason."""

    def __init__(self, code: Code, **numbers: object) -> None:
        super().__init__(code)
        self.code = code
        self.numbers = numbers


@dataclass(frozen=True)
class Seat:
    """What the tiles of a product run, and what makes rows of their partial results.

    Of a program that needs whole tiles, a tile's later stages use its own earlier results.
    """

    epilogue: Program
    finish: Program | None = None
    partials: tuple[Buffer, ...] = ()


# ---- does it fit -----------------------------------------------------------------------------


def fit(program: Program, value: str, columns: int, widths: tuple[int, ...]) -> Program:
    """The program over the rows and columns of the product `value`, which it reads as it lies.

    `widths` are those of the tiles that whole segments, or rows, must fit.
    """
    rows, inside = axes_of(program, value, columns)
    spans = [program.inner if s.segment else program.elements for s in program.stages]
    narrow = [set(s) for s in spans if set(s) != set(inside)]
    inner = inside[len(inside) - len(narrow[0]) :] if narrow else inside
    if any(s != set(inner) for s in narrow):
        raise Unfit(Code.WALKS)
    outer = inside[: len(inside) - len(inner)]
    levels = {frozenset({*rows, *inside}): "element", frozenset(rows): "row"}
    levels.setdefault(frozenset({*rows, *outer}), "segment")
    if any(s.access.atoms not in levels for s in program.stores):
        raise Unfit(Code.WALKS)
    fitted = replace(
        program,
        rows=rows,
        outer=outer,
        inner=inner,
        stages=tuple(
            replace(s, segment=set(span) != set(inside))
            for s, span in zip(program.stages, spans, strict=True)
        ),
        stores=tuple(replace(s, level=levels[s.access.atoms]) for s in program.stores),
        strided=False,
    )
    _check(fitted, widths)
    return fitted


def stored(name: str, shape: Shape, columns: Dim) -> Program:
    """The program that stores a product as it is."""
    atoms = Atoms()
    layout = atoms.layout(shape)
    access = atoms.access(name, shape, layout)
    order = flat(layout)
    inside = len(order)
    while atoms.size(order[inside:]) != columns:
        inside -= 1
    store = Store(load(access), access, "element")
    return Program(
        atoms.sizes, tuple(order[:inside]), (), tuple(order[inside:]), (), (store,), False
    )


def walks_rows(program: Program, value: str, columns: Dim) -> bool:
    """Whether a program reads each element of the product `value` once, row by row."""
    if not isinstance(columns, int):
        return False
    try:
        axes_of(program, value, columns)
    except Unfit:
        return False
    return True


def axes_of(program: Program, value: str, columns: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The atoms of the product's rows and of its columns, if each element is read once."""
    accesses = [a for a in program.loads if a.buffer == value]
    if len(accesses) != 1 or accesses[0].atoms != frozenset(program.sizes):
        raise Unfit(Code.WALKS)
    if accesses[0].offset != 0 or accesses[0].within:
        raise Unfit(Code.WALKS)
    order = sorted(program.sizes, key=lambda a: hint(accesses[0].stride(a)), reverse=True)
    step: Dim = 1
    cut = len(order)
    for i, atom in reversed(list(enumerate(order))):
        if accesses[0].stride(atom) != step:
            raise Unfit(Code.WALKS)
        step = as_dim(step * program.sizes[atom])
        if step == columns:
            cut = i
    rows, inside = tuple(order[:cut]), tuple(order[cut:])
    if not rows or not inside:
        raise Unfit(Code.WALKS)
    return rows, inside


def _check(program: Program, widths: tuple[int, ...]) -> None:
    """Nothing that a tile does may wait for a result of the whole row."""
    stages = program.stages
    waiting = {i for i, s in enumerate(stages) if _row_results(program, s.expr)}
    waiting -= {i for i in waiting if rescaled(program, i) is not None}
    stored_early = [s for s in program.stores if s.level != "row"]
    if waiting or any(_row_results(program, s.expr) for s in stored_early):
        raise Unfit(Code.WHOLE_ROW)
    if len(stored_early) < len(program.stores) and all(s.segment for s in stages):
        raise Unfit(Code.WHOLE_ROW)
    fills = any(_columns(program) % w == 0 for w in widths)
    if needs_whole_tiles(program) and (program.segmented or not fills):
        raise Unfit(Code.WHOLE_ROW)
    if program.segmented:
        segment = int(str(program.count(program.inner)))
        if segment % SEGMENT_MULTIPLE or not any(w % segment == 0 for w in widths):
            raise Unfit(Code.SEGMENTS, segment=segment)


def _row_results(program: Program, expr: Expr) -> list[int]:
    """The stages over whole rows whose results an expression uses."""
    used = [int(str(leaf.value)) for leaf in leaves(expr, "acc")]
    return [i for i in used if not program.stages[i].segment]


def _columns(program: Program) -> int:
    return int(str(program.count(program.elements)))


def rescaled(program: Program, index: int) -> int | None:
    """The stage m such that this one is a sum of exp(x - m), with m the maximum of the same x.

    Then a tile can take its own maximum instead, and the sums are brought to a common one later.
    """
    stage = program.stages[index]
    used = _row_results(program, stage.expr)
    if stage.kind != "sum" or stage.segment or len(used) != 1:
        return None
    largest = program.stages[used[0]]
    shifted = call("exp_below", call("sub", largest.expr, _shift(acc(used[0]))))
    return used[0] if largest.kind == "max" and stage.expr is shifted else None


def _shift(largest: Expr) -> Expr:
    return call("finite_or_zero", largest)


def rescale(expr: Expr, here: Expr, largest: Expr) -> Expr:
    """A sum of exponentials below the largest of its own part, `here`, below that of all parts."""
    factor = call("exp_below", call("sub", _shift(here), _shift(largest)))
    # A part of -inf alone adds nothing, but its factor may be infinite.
    empty = call("eq", here, const(float("-inf")))
    return call("where", empty, expr, call("mul", expr, factor))


def merged(program: Program, index: int) -> int | None:
    """The stage s such that this one is a sum of x - s / n, or of its square, with s that of x.

    Then a part of the row can take its own mean instead, and the sums are merged later.
    """
    stage = program.stages[index]
    used = _row_results(program, stage.expr)
    if stage.kind != "sum" or stage.segment or len(used) != 1:
        return None
    total, around = program.stages[used[0]], centred(stage)
    if total.kind != "sum" or around.op != "sub" or around.args[0] is not total.expr:
        return None
    return used[0] if stage_of_mean(around.args[1]) == used[0] else None


def centred(stage: Stage) -> Expr:
    """What such a stage sums, without its square."""
    return stage.expr.args[0] if stage.expr.op == "square" else stage.expr


def needs_whole_tiles(program: Program) -> bool:
    """Whether a later stage of a tile uses an earlier result of the same tile."""
    return any(rescaled(program, i) is not None for i in range(len(program.stages)))


# ---- in two parts ----------------------------------------------------------------------------


def decompose(program: Program, block_n: int, taken: set[str]) -> Seat:
    """Part a fitted program at the tiles; `taken` are names that the new buffers must not have."""
    over_row = [i for i, s in enumerate(program.stages) if not s.segment]
    if not over_row:
        return Seat(program)
    tiles = -(-_columns(program) // block_n)
    sizes: list[Dim] = [*(program.sizes[a] for a in program.rows), tiles]
    names = {i: fresh_name(f"{program.stages[i].name}_partials", taken) for i in over_row}
    partials = tuple(Buffer(n, tuple(sizes), torch.float32) for n in names.values())
    tile = 1 + max(program.sizes)
    order = {a: product(sizes[i + 1 :]) for i, a in enumerate((*program.rows, tile))}
    place = Coordinate(tuple(sorted(order.items())))
    places = {i: Access(n, place) for i, n in names.items()}
    early = tuple(s for s in program.stores if s.level != "row")
    finish = _finish(program, tile, tiles, places)
    return Seat(replace(program, stores=early), finish, partials)


def _finish(program: Program, tile: int, tiles: int, places: dict[int, Access]) -> Program:
    """One element for each tile: the same reductions once more, then the stores of the rows."""
    results = {i: acc(k) for k, i in enumerate(places)}

    def rebuilt(expr: Expr) -> Expr:
        return substitute(expr, _results_of(results))

    stages = []
    for i, place in places.items():
        expr, largest = load(place), rescaled(program, i)
        if largest is not None:
            expr = rescale(expr, load(places[largest]), results[largest])
        stages.append(Stage(program.stages[i].name, program.stages[i].kind, expr, False))
    stores = [replace(s, expr=rebuilt(s.expr)) for s in program.stores if s.level == "row"]
    sizes = {a: program.sizes[a] for a in program.rows} | {tile: tiles}
    uniform = {e: name for e, name in program.labels.items() if _known(e, results)}
    labels = {rebuilt(e): name for e, name in uniform.items()}
    return Program(
        sizes, program.rows, (), (tile,), tuple(stages), tuple(stores), False, labels
    )  # fmt: skip


def _results_of(results: dict[int, Expr]) -> Callable[[Expr], Expr | None]:
    return lambda e: results.get(int(str(e.value))) if e.op == "acc" else None


def _known(expr: Expr, results: dict[int, Expr]) -> bool:
    return all(int(str(leaf.value)) in results for leaf in leaves(expr, "acc"))
