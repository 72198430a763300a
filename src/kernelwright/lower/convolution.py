"""A planned convolution becomes kernels: its tile, the program on it, and what finishes rows.

The tiles are those of conv.py, in its order: the first that the program can be cut to is taken.
Here is decided how the threads of an epilogue lie over the rows of a tile.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache, lru_cache

import torch

from kernelwright.expr import OPS, Expr, cost, load, postorder
from kernelwright.graph import Dim, Graph, hint
from kernelwright.lower.config import Config, vector_width
from kernelwright.lower.conv import TYPICAL_BATCH, room, tiles
from kernelwright.lower.conv_choice import ONES, Needs
from kernelwright.lower.conv_shape import ConvConfig
from kernelwright.lower.kernel import Kernel, Template, finishing, rowwise
from kernelwright.lower.schedule import Schedule, schedule, stores_first
from kernelwright.plan.averages import averaged
from kernelwright.plan.conv_seats import ConvTimed
from kernelwright.plan.convolutions import ConvForm
from kernelwright.plan.epilogue import Unfit
from kernelwright.plan.largest import Largest, largest, over_windows
from kernelwright.plan.model import Buffer, Conv, Program, Region
from kernelwright.plan.tiles import Box, Tiled, partial_results, tiled
from kernelwright.plan.walks import CHANNEL, Walk, side_by_side, walk
from kernelwright.targets.target import ConvLoop, Target

WARP = BANKS = 32
MOST_LANES = 4  # floats of a shared-memory access
MOST_KEPT = 96  # floats that a thread keeps from stage to stage
# Operations of an element that registers are worth taking the loops apart for, and of a loop's
# body. On an H200 an rms (18) takes 171 us so and 212 in a loop, a softmax 206 and 231.
LIGHT = 24
LOOP_BODY = 512
LOADING_BODY = 1024  # where elements are loaded, and latencies count more than code
ROOMY_BODY = 896  # where few sums leave registers for it
FEW_SUMS = 96
# Operations in whose time a row's element of another tensor comes: on an H200 a dropout's mask
# makes an epilogue with a max pool 120 us longer.
WAITED = 64
LEAST_BODY = 4  # operations of a lane beside its program's
WORTH = 0.8  # the share of a thread's chunks for which a row gets more lanes, and banks conflict
# Operations of an element's reductions that are worth code without loops, as registers need it. On
# an H200 the variance of a selu, 19 operations, takes 182 us through slices and 106 so; the mean of
# an elu behind a BatchNorm, 19 too, 62 and 39.
STRAIGHT = 20
# The same over channels: the largest of x + softplus(GroupNorm(x)), 20 operations, takes 151 us
# through slices and 165 so; a logsumexp, 7 operations, 117 and 82.
STRAIGHT_ACROSS = 16


@dataclass(frozen=True)
class Laid:
    """`lanes` threads have a segment, or the row, `teams` of them a row, in chunks of `vec`.

    In a tile that lies across an edge, chunks have `edge_vec`: all of it is inside, or nothing.
    From stage to stage a thread keeps its chunks in `registers`, which takes its loops apart, or
    where the results were, in the `slice`, or makes them `again`. Loops have `unroll` chunks.
    `early`: stages are done where the sums are, before they lie in a slice; `across`: the same of
    stages over channels. `first`: elements are stored with the first stage.
    """

    vec: int
    edge_vec: int
    lanes: int
    teams: int
    keeps: str
    unroll: int
    early: bool = False
    first: bool = False
    across: bool = False


@dataclass(frozen=True)
class ConvKernel(Kernel):
    """A convolution and its epilogue, for which the results are `given` in shared memory.

    `form` is the convolution that the tile is made for: the planned one, or that of means.
    """

    conv: Conv
    form: ConvForm
    tiled: Tiled
    tile: ConvConfig
    laid: Laid
    largest: Largest

    @property
    def given(self) -> Expr:
        return load(self.tiled.given)

    @property
    def partials(self) -> tuple[Buffer, ...]:
        return self.tiled.partials

    @property
    def room(self) -> tuple[Buffer, ...]:
        """Memory that a launch needs besides."""
        return room(self.tile)

    def goes_on(self, before: ConvKernel) -> bool:
        """Whether the weights that the kernel before it has packed are those that it would pack.

        Both read one input, so that this one may begin to before the other is done. Where an
        epilogue wants some channels turned, it has weights of its own.
        """
        if self.largest.signs or before.largest.signs:
            return False
        packed = [(k.form, k.conv.loop, k.config.constants) for k in (before, self)]
        return packed[0] == packed[1]

    @property
    def reads(self) -> list[str]:
        return [name for name in super().reads if name != self.conv.product]


def convolution(graph: Graph, region: Region, conv: Conv, target: Target) -> list[Kernel]:
    """The convolution, and the kernel that finishes its rows if there is one."""
    assert region.program is not None
    walked = walk(region.program, conv.product, conv.form, graph)
    found = tile_of(walked, conv.form, conv.loop)
    assert found is not None, "the planner has asked"
    tile = found.tile
    parts = tiled(found.walk, tile.box, tile.pitch, set(graph.by_name))
    given = [load(access) for access in parts.reads]
    # Rows of several channels are rows of one each where they go on in other tiles.
    several = any(d.atom in found.walk.reduced for d in found.walk.of(CHANNEL))
    early = found.early and (parts.finish is not None or not several)
    outside = {t.atom for t in parts.outside}
    plan = schedule(parts.epilogue, given, outside)
    across = found.across and dict(tile.constants)["kPixelsOnM"] == 1
    laid = _laid(graph, parts, plan, tile, early, across)
    if laid.keeps == "again" and not early and stores_first(parts.epilogue):
        # With the stores out of the way, the slice may have room for what stages make.
        plan = schedule(parts.epilogue, given, outside, first_stored=True)
        laid = replace(_laid(graph, parts, plan, tile, early, across), first=True)
    kernels: list[Kernel] = [
        ConvKernel(
            region,
            parts.epilogue,
            plan,
            Config(conv.loop.kernel, tile.constants, tile.why),
            Template(conv.loop.kernel, spares_cache=True, seconds=8),
            conv,
            found.form,
            parts,
            tile,
            laid,
            found.largest,
        )
    ]
    if parts.finish is not None:
        kernels.append(rowwise(graph, finishing(region, parts.finish), parts.finish, target))
    return kernels


def conv_time(walked: Walk, form: ConvForm, loop: ConvLoop, batch: int) -> ConvTimed | None:
    """What a generated convolution takes with this epilogue; None: it has no tile."""
    found = tile_of(walked, form, loop)
    return None if found is None else ConvTimed(found.time(batch), found.form)


@dataclass(frozen=True)
class Cut:
    """A tile, the walk that is cut to it, and what of the results the walk is given.

    `form` is that of the results, which may be means of the convolution's (averages.py). `early`:
    reductions over places may be done where the sums are; `across`: those over channels.
    `partials`: how many numbers all tiles leave for the kernel that finishes rows.
    """

    walk: Walk
    form: ConvForm
    loop: ConvLoop
    tile: ConvConfig
    partials: Dim
    largest: Largest
    early: bool
    across: bool

    def time(self, batch: int) -> float:
        """In microseconds, with what it takes to store and to read the partial results."""
        return self.tile.time(batch) + 2 * 4 * hint(self.partials, batch) / self.loop.memory


@lru_cache(maxsize=64)
def tile_of(walked: Walk, form: ConvForm, loop: ConvLoop) -> Cut | None:
    """The best tile that the program can be cut to."""
    ways = [] if walked.pool else [(walked, form, _each(form))]
    alone = largest(walked, form)
    # Weights that are multiplied as they are in memory have no scale that could bring a sign back.
    if alone is not None and (loop.dtype == torch.float32 or not alone.signs):
        ways.append((over_windows(walked, alone.pool), form, alone))
    # Nor are their results computed again.
    means = averaged(walked, form) if loop.dtype == torch.float32 else None
    if means is not None:
        ways.append((*means, _each(means[1])))
    found = [cut for w, f, some in ways if (cut := _cut(w, f, loop, some)) is not None]
    return min(found, key=_typical_time, default=None)


def _typical_time(cut: Cut) -> float:
    return cut.time(TYPICAL_BATCH)


def _each(form: ConvForm) -> Largest:
    """Of one result alone."""
    return Largest(side_by_side(ONES, form.out_size))


def _cut(walked: Walk, form: ConvForm, loop: ConvLoop, some: Largest) -> Cut | None:
    @cache
    def partials(box: Box) -> Dim | None:
        try:
            return partial_results(walked, box)
        except Unfit:
            return None

    needs = walked.needs
    program = walked.program
    stores = any(store.level == "element" for store in program.stores)
    early = _reductions(walked, form, some)
    later = [s.expr for s in program.stores] if early else program.exprs
    work = cost(*later) + (0 if early else len(program.stages))
    if program.stages:
        given = next(a for a in program.loads if a.buffer == walked.value)
        work += WAITED * len(program.as_large_as(given))
    if not walked.has_own:  # fewer elements than there are results
        work = math.ceil(work * _share(walked))
    across = _across(walked, form, some)
    for channels in (needs.channels, form.cout):
        wanted = Needs(channels, needs.multiple, some.pool, stores, work, early, across)
        best: Cut | None = None
        for tile in tiles(form.unnamed, loop, wanted):  # the fastest first
            if best is not None and tile.time(TYPICAL_BATCH) >= _typical_time(best):
                break
            left = partials(tile.box)
            if left is None:
                continue
            cut = Cut(walked, form, loop, tile, left, some, early > 0, across > 0)
            if best is None or _typical_time(cut) < _typical_time(best):
                best = cut
        if best is not None:
            return best
    return None


def _share(walked: Walk) -> float:
    """How many elements the program has for each channel of a place."""
    return math.prod(int(str(d.size)) for d in walked.of(CHANNEL)) / walked.extents[CHANNEL]


def _in_slices(form: ConvForm, some: Largest) -> bool:
    """Whether results are made of several sums, which meet in a slice."""
    return some.pool.window != ONES or (form.transposed and max(form.stride) > 1)


def _reductions(walked: Walk, form: ConvForm, some: Largest) -> int:
    """Operations of an element's reductions over places, if they are done where the sums are."""
    if _in_slices(form, some) or not walked.over_places:
        return 0
    work = _reducing(walked)
    return work if work <= STRAIGHT else 0


def _across(walked: Walk, form: ConvForm, some: Largest) -> int:
    """The same of reductions over channels, where nothing else is made of the elements."""
    alone = all(store.level == "row" for store in walked.program.stores)
    if _in_slices(form, some) or not alone or not walked.over_channels:
        return 0
    work = _reducing(walked)
    return work if work <= STRAIGHT_ACROSS else 0


def _reducing(walked: Walk) -> int:
    """Operations of an element in all stages."""
    exprs = [stage.expr for stage in walked.program.stages]
    each = [e for e in postorder(*exprs) if walked.is_read_by(e)]
    return len(exprs) + sum(OPS[e.op].cost for e in each if e.op in OPS)


def _laid(
    graph: Graph, parts: Tiled, plan: Schedule, tile: ConvConfig, early: bool, across: bool
) -> Laid:
    program, threads = parts.epilogue, tile.threads
    rows = int(str(program.count(parts.local_rows)))
    elements = int(str(program.count(program.elements)))
    segment = int(str(program.count(program.inner)))
    vec, edge_vec = _vectors(graph, parts)
    unroll = _unrolled(parts, vec, tile.sums)
    one_place = all(len(held) <= 1 for held in plan.held)  # of an element, for what it keeps
    if not program.stages:
        return Laid(vec, edge_vec, 1, 1, "registers", unroll)
    if across:  # few tiles have slices at all; a thread by itself keeps its row there
        return Laid(vec, edge_vec, 1, 1, "slice" if one_place else "again", unroll, across=True)
    most = elements // segment if program.segmented else -(-segment // vec)
    # Neighbours in a row are read together: all banks of shared memory at once.
    along = program.lanes and parts.given.stride(program.lanes[-1]) == 1 and elements >= BANKS // 2
    least = max(threads, rows * (BANKS // vec if along and not program.segmented else 1))
    shared = 1
    while rows * shared < least and shared < WARP and 2 * shared <= most:
        shared *= 2

    def turns(shared: int) -> int:
        """Chunks that a thread goes through, those of rows that are none among them."""
        return -(-rows * shared // threads) * -(-elements // (vec * shared))

    more = [] if program.segmented else [2 * shared, 4 * shared]
    fewer = [n for n in more if n <= min(WARP, most) and turns(n) <= WORTH * turns(shared)]
    shared = min(fewer, key=turns, default=shared)
    if not along and not program.segmented and program.lanes:
        vec = _apart(vec, shared, int(str(parts.given.stride(program.lanes[-1]))))
        edge_vec = math.gcd(vec, edge_vec)
    chunks = -(-elements // (vec * shared))
    lanes, teams = (1, shared) if program.segmented else (shared, 1)
    kept = chunks * vec * max(1, len(plan.fields))
    stores = any(store.level == "element" for store in program.stores)
    once = len(program.stages) == 1 and not stores and chunks > unroll  # a loop reads no more
    if kept <= MOST_KEPT and _operations(program) <= LIGHT and not early and not once:
        keeps = "registers"
    elif early and stores:
        keeps = "again"  # the sums are still needed
    elif one_place and rows * shared % threads == 0:
        keeps = "slice"  # each row has its threads alone
    else:
        keeps = "again"
    return Laid(vec, edge_vec, lanes, teams, keeps, unroll, early)


def _apart(vec: int, lanes: int, stride: int) -> int:
    """The most neighbours of a chunk with which the lanes of all rows read the fewest banks twice.

    Rows are neighbours in memory, elements `stride` apart: the first of a lane's must not lie in
    the bank of another lane's.
    """

    def most(vec: int) -> int:
        banks = Counter(
            (lane * vec * stride + row) % BANKS
            for lane in range(lanes)
            for row in range(WARP // lanes)
        )
        return max(banks.values())

    return min((v for v in range(vec, 0, -1) if vec % v == 0), key=most)


def _operations(program: Program) -> int:
    return cost(*program.exprs) + LEAST_BODY


def _unrolled(parts: Tiled, vec: int, sums: int) -> int:
    """Chunks that a loop has at once, beside so many sums of a thread.

    On an H200 a softplus of single floats takes 146 us with eight and 125 with sixteen; pairs that
    are stored as they are 181 and 195; a SELU of fours beside 96 sums 44.8 with four, 43.4 with
    six, 42.7 with twelve.
    """
    program = parts.epilogue
    most = LOADING_BODY if program.as_large_as(parts.given) else LOOP_BODY
    each = vec * _operations(program)
    turns: tuple[int, ...] = (8, 4, 2)
    if vec == 1 and not program.stages:
        turns = (16, *turns)
    if vec == 4 and not program.stages and 8 * each > most:
        turns = (12, 8, 6, 4, 2)
        most = max(most, ROOMY_BODY) if sums <= FEW_SUMS else most
    return next((n for n in turns if n * each <= most), 1)


def _vectors(graph: Graph, parts: Tiled) -> tuple[int, int]:
    """Lanes of a chunk, and so many of which none lies beyond an edge when the first does not.

    A chunk may go on in the next row of the tile, which may lie beyond an edge.
    """
    program = parts.epilogue
    vec = min(vector_width(graph, program)[0], MOST_LANES)
    ends: list[int] = []
    for bound in parts.elements:
        for i, lane in enumerate(program.lanes):
            if bound.at.stride(lane) == 0:
                continue
            further = program.lanes[i + 1 :]
            if further:  # all of it on one side of the edge
                ends.append(int(str(program.count(further))))
            else:
                ends += [int(str(end)) for end in (bound.high, program.count((lane,)))]
    return vec, math.gcd(vec, *ends)
