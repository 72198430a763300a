"""How the tiles of a generated convolution are chosen: its form in, ranked configurations out.

A configuration is everything that kernels/conv_shape.cuh wants to know. All tiles that the tensor
cores can multiply are tried: weights as rows of the products or places as rows, blocks of places
along any axis, the two warpgroups side by side along any axis or on different channels, some or all
channels in a stage, weights resident or coming with every stage. What does not fit says why; the
rest is ranked by a model of what a tile takes (targets/): the products, the feeding warps, the
epilogue, memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import product as every
from typing import NamedTuple

import torch

from kernelwright.plan import Buffer, ConvForm
from kernelwright.plan.convolutions import Extents, Mean
from kernelwright.plan.tiles import Box
from kernelwright.plan.walks import Pool, side_by_side
from kernelwright.targets.sm_90 import CONVOLVING

AXES = "DHW"
# Depth steps between two promotions, and so many that need none (kernels/conv_sm90.cuh).
PROMOTE = 5
NO_PROMOTION = 6
# Where the weights of a stage are: in shared memory for the whole launch, with the stage, or in a
# ring of the warpgroup that multiplies them.
WEIGHTS = RESIDENT, STAGED, OWN = "resident", "with every stage", "of each warpgroup"
WEIGHT_RING = 2
# Columns of one product; the others are not worth their instructions.
WIDTHS = (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128)
ROWS = (16, 14, 12, 10, 8, 7, 6, 5, 4)
BLOCKS = (
    *((1, 1, 1), (1, 1, 2), (1, 2, 1), (2, 1, 1), (1, 1, 4), (1, 2, 2)),
    *((2, 1, 2), (4, 1, 1), (2, 2, 1), (1, 4, 1), (3, 1, 1), (1, 1, 3), (1, 1, 5), (1, 3, 1)),
)
SPLITS = ("C", "X", "Y", "Z")
MOST_ACCUMULATORS = 144
MOST_REDUCED = 128  # of them, where they are reduced in registers
MOST_OFFSET = 1 << 29  # elements between those of a stage, whose bytes are counted in 31 bits
SLICE_BYTES = 72 << 10
SMALL_BYTES = 36 << 10  # of all slices of sixteen channels; larger ones are no faster than two
PHASES_BYTES = 140 << 10  # where all phases meet in one slice
SECTOR = 8  # floats that memory writes together
MOST_OVERLAPPING = 9  # columns of windows that overlap: those of an eight reach into the next one
MOST_BOX = 256  # elements of a box along an axis
BOX_BYTES = 12 << 10  # of a box, so that several are on their way
RAW_BYTES = 36 << 10  # of them all
BOXES_BYTES = [n << 10 for n in (4, 8, 12, 16, 24)]  # of a box, when the tile is known
UNITS_AT_ONCE = 4  # that a feeding thread loads before it converts the first
BOX_PLACES = 8 * 128  # of a box, so that a thread keeps in registers where they are


@dataclass(frozen=True)
class Arithmetic:
    """A main loop: planes of an operand, products for each of its own, bytes of an element."""

    planes: int
    products: int
    scaled: bool
    bytes: int


ARITHMETIC = {
    "split": Arithmetic(2, 3, True, 4),
    "rounded": Arithmetic(1, 1, True, 4),
    "float16": Arithmetic(1, 1, False, 2),
    "bfloat16": Arithmetic(1, 1, False, 2),
}


@dataclass(frozen=True)
class ConvConfig:
    """The slices that the epilogue is given, and all constants of the kernel.

    `tile_time` is what a block's tile takes in microseconds, `tiles` how many a sample has, and
    `sample_bytes` what it reads and writes.
    """

    channels: int
    depth: int
    height: int
    width: int
    pitch: int
    threads: int
    constants: tuple[tuple[str, int], ...]
    why: str
    tile_time: float
    tiles: int
    sample_bytes: int
    shared_bytes: int
    packed_bytes: int
    scale_bytes: int

    @property
    def box(self) -> Box:
        """Of one sample, what an epilogue is given."""
        return 1, self.channels, self.depth, self.height, self.width

    def time(self, batch: int) -> float:
        """Of the convolution alone with a pointwise epilogue, packing included."""
        return _launch_time(batch, self.tiles, self.tile_time, self.sample_bytes)


def _launch_time(batch: int, tiles: int, tile_time: float, sample_bytes: int) -> float:
    waves = math.ceil(batch * tiles / CONVOLVING.processors)
    memory = batch * sample_bytes / CONVOLVING.memory_rate
    working = waves * tile_time
    return max(working, memory) + 0.25 * min(working, memory) + CONVOLVING.overhead


ONES: Extents = (1, 1, 1)


class Slices(NamedTuple):
    """Threads of an epilogue, and what it is given."""

    threads: int
    channels: int
    depth: int
    height: int
    width: int
    pitch: int

    @property
    def box(self) -> Box:
        """Of one sample."""
        return 1, self.channels, self.depth, self.height, self.width

    @property
    def bytes(self) -> int:
        """Of all that are in use at once, with their channels' scales."""
        return self.channels * (self.pitch + 1) * 4 * (256 // self.threads)


@dataclass(frozen=True)
class Needs:
    """What an epilogue wants to see together, and what it does.

    `pool`: it begins with the largest of such windows; of a transposed convolution they are its
    strides. Then it is given the pooled results, and the multiples count those. `stores`: results
    are written as they are, so that it matters how long the runs are in which a tile writes them.
    `operations` are those of its program on slices, `early` those that are done where the sums are,
    before all others. `across`: those of reductions over channels, which are done there if places
    are rows, and then are all that there is.
    """

    channels_together: int
    multiple: Extents
    pool: Pool | None = None
    stores: bool = True
    operations: int = 2
    early: int = 0
    across: int = 0

    @property
    def together(self) -> Needs:
        """What of them a tile's shape and its memory depend on: not how much there is to do."""
        return Needs(
            *(self.channels_together, self.multiple, self.pool),
            early=min(self.early, 1),
            across=min(self.across, 1),
        )


@dataclass(frozen=True)
class Axis:
    """One axis of the space, as ConvAxis of kernels/conv_shape.cuh has it."""

    size: int
    out: int
    kernel: int
    stride: int
    pad: int
    dilation: int
    pack: int
    transposed: bool
    pooled: bool

    @property
    def spread(self) -> int:
        """Results of a place."""
        return 1 if self.pooled else self.phases

    @property
    def phases(self) -> int:
        return self.stride if self.transposed else 1

    @property
    def places(self) -> int:
        return self.out // self.phases if self.pooled else -(-self.out // self.phases)

    @property
    def step(self) -> int:
        return 1 if self.transposed else self.stride

    @cached_property
    def shifts(self) -> list[list[int]]:
        """For each phase of a transposed one, where its taps meet the input."""
        reached = [
            [(phase + self.pad - tap * self.dilation, tap) for tap in range(self.kernel)]
            for phase in range(self.stride)
        ]
        return [[at // self.stride for at, _ in taps if at % self.stride == 0] for taps in reached]

    def taps(self, phase: int) -> int:
        return len(self.shifts[phase]) if self.transposed else -(-self.kernel // self.pack)

    @property
    def first(self) -> int:
        """Where in the input a tile begins, seen from its first place."""
        return min(x for met in self.shifts for x in met) if self.transposed else -self.pad

    @cached_property
    def reach(self) -> int:
        if not self.transposed:
            return (self.taps(0) - 1) * self.pack * self.dilation
        met = [at for shifts in self.shifts for at in shifts]
        return max(met) - min(met)


@lru_cache
def _axes(form: ConvForm, pack: int, pooled: bool) -> tuple[Axis, ...]:
    f = form
    numbers = (f.in_size, f.out_size, f.kernel, f.stride, f.padding, f.dilation)

    def axis(at: int) -> Axis:
        size, out, kernel, stride, pad, dilation = (n[at] for n in numbers)
        packed = pack if at == 2 else 1
        return Axis(size, out, kernel, stride, pad, dilation, packed, f.transposed, pooled)

    return tuple(axis(at) for at in range(3))


@lru_cache
def _depth_steps(axes: tuple[Axis, ...], chunks: int) -> list[int]:
    z, y, x = axes
    return [
        -(-z.taps(a) * y.taps(b) * x.taps(c) * chunks // 2)
        for a, b, c in every(range(z.phases), range(y.phases), range(x.phases))
    ]


@dataclass(eq=False)
class Choice:
    """What is free to choose. `blocks` and `split` are along depth, height and width."""

    form: ConvForm
    loop: Arithmetic
    merge: int
    pixels: bool
    rows: int
    blocks: Extents
    channels: int
    split: str
    chunks: int
    weights: str
    along: bool
    pool: Pool

    def __str__(self) -> str:
        z, y, x = self.block
        rows = "places" if self.pixels else "weights"
        return (
            f"{self.block_channels} channels of {z} x {y} x {x} places, {rows} as rows, "
            f"{8 * self.chunks} channels a stage, weights {self.weights}"
        )

    @property
    def resident(self) -> bool:
        return self.weights == RESIDENT

    @property
    def weight_ring(self) -> int:
        """Stages of weights that a warpgroup has fetched for itself."""
        return WEIGHT_RING if self.weights == OWN else 0

    @cached_property
    def pack(self) -> int:
        """Neighbouring taps of a row of the window that share a chunk."""
        if self.form.transposed or self.group_in > 4:
            return 1
        channels = 1 << (self.group_in - 1).bit_length()
        return min(8 // channels, 1 << (self.form.kernel[2] - 1).bit_length())

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        return _axes(self.form, self.pack, self.of_phases)

    @property
    def of_phases(self) -> bool:
        """Whether the largest result is that of the phases of each place."""
        return self.pool.window != ONES and self.form.transposed and max(self.form.stride) > 1

    @cached_property
    def windows(self) -> Pool:
        """Or else that of windows of places."""
        return side_by_side(ONES, self.pool.count) if self.of_phases else self.pool

    @property
    def groups(self) -> int:
        return self.form.groups // self.merge

    @property
    def group_in(self) -> int:
        return self.form.cin // self.groups

    @property
    def group_out(self) -> int:
        return self.form.cout // self.groups

    @property
    def all_chunks(self) -> int:
        return -(-self.group_in * self.pack // 8) if self.pack > 1 else -(-self.group_in // 8)

    @property
    def stages_of_tile(self) -> int:
        return -(-self.all_chunks // self.chunks)

    @property
    def times(self) -> Extents:
        """How many warpgroups lie along each axis."""
        return tuple(2 if self.split == axis else 1 for axis in "ZYX")  # type: ignore[return-value]

    @property
    def computed(self) -> Extents:
        """Places of a warpgroup that are multiplied."""
        z, y, x = self.blocks
        return (z, y, x * self.rows * 8) if self.along else (z, y * self.rows, x * 8)

    def used(self, multiple: Extents) -> Extents:
        """And those that are kept: whole multiples of the epilogue's, and no more than exist."""
        found: list[int] = []
        for many, axis, times in zip(self.computed, self.axes, self.times, strict=True):
            at = len(found)
            step, over = self.windows.step[at], self.windows.overlap[at]
            results = multiple[at] * step
            whole = results // math.gcd(results, axis.spread)
            wanted = -(-self.windows.count[at] * step // (times * whole * axis.spread)) * whole
            found.append(min((many - over) // whole * whole, wanted) + over)
        return found[0], found[1], found[2]

    def advance(self, used: Extents) -> Extents:
        """Places after which the next tile begins, which sees again what windows share."""
        z, y, x = (n - over for n, over in zip(used, self.windows.overlap, strict=True))
        return z, y, x

    def handed(self, used: Extents) -> Extents:
        """Results or windows of a warpgroup's tile along each axis."""
        advance = zip(self.advance(used), self.axes, self.windows.step, strict=True)
        z, y, x = (n * axis.spread // step for n, axis, step in advance)
        return z, y, x

    @cached_property
    def block(self) -> Extents:
        z, y, x = (n * t for n, t in zip(self.computed, self.times, strict=True))
        return z, y, x

    @property
    def block_channels(self) -> int:
        return self.channels * (2 if self.split == "C" else 1)

    @property
    def channel_tiles(self) -> int:
        return self.groups * -(-self.group_out // self.block_channels)

    @cached_property
    def phases(self) -> int:
        return math.prod(axis.phases for axis in self.axes)

    @cached_property
    def spread(self) -> int:
        return math.prod(axis.spread for axis in self.axes)

    @cached_property
    def depth_steps(self) -> list[int]:
        """Of each phase in one stage."""
        return _depth_steps(self.axes, self.chunks)

    @property
    def promotes(self) -> bool:
        return self.loop.planes == 2 and max(self.depth_steps) * self.stages_of_tile > NO_PROMOTION

    @property
    def columns(self) -> int:
        """Of one product."""
        return self.channels if self.pixels else 8 * self.rows

    @property
    def parts(self) -> int:
        return math.prod(self.blocks) * (1 if self.pixels else self.channels // 64)

    @property
    def accumulators(self) -> int:
        return (self.parts + self.promotes) * self.columns // 2

    @property
    def may_own(self) -> bool:
        """Whether warpgroups have channels of their own, and so many stages that it matters."""
        several = self.stages_of_tile > 1 and self.phases == 1
        return several and self.split == "C" and not self.promotes

    def refused(self, used: Extents) -> str:
        """Why the tensor cores or the kernel cannot do this."""
        if min(self.advance(used)) < 1:
            return "a window of the epilogue does not fit the tile"
        if self.accumulators > MOST_ACCUMULATORS:
            return "too many accumulators"
        if self.resident and self.channel_tiles > CONVOLVING.processors // 2:
            return "more tiles of channels than blocks that could keep them"
        if self.pack > 1 and self.chunks > 1:
            return "one chunk has all channels"
        if 8 * self.chunks * math.prod(self.form.in_size) >= MOST_OFFSET:
            return "places of a stage are too far apart"
        if self.windows.window != ONES and (self.pixels or not self.has_columns(used[2])):
            return "a warp does not have whole windows"
        return ""

    def has_columns(self, wide: int) -> bool:
        """Whether four threads, of which each has two columns of eight, have those of a window."""
        window, step = self.windows.window[2], self.windows.step[2]
        inside = window <= MOST_OVERLAPPING if window > step else wide % 8 == 0
        return 8 % step == 0 and inside


@lru_cache(maxsize=256)
def tiles(form: ConvForm, loop: str, needs: Needs) -> tuple[ConvConfig, ...]:
    """Of each box that an epilogue may be given the fastest configuration, the fastest first.

    A network has the same convolution many times, and is planned several times.
    """
    found: dict[Box, Timed] = {}
    for timed in _timed(form, loop, needs):
        found.setdefault(timed.shape.slices.box, timed)
    return tuple(timed.config for timed in found.values())


def ranked(form: ConvForm, loop: str, needs: Needs) -> list[ConvConfig]:
    """All configurations, the fastest first."""
    return [timed.config for timed in _timed(form, loop, needs)]


def _timed(form: ConvForm, loop: str, needs: Needs) -> list[Timed]:
    """All that fit, the fastest first for a typical batch.

    Of equals the widest is first: on an H200 tiles of 8 x 16 places take up to 7% less than those
    of 16 x 8, and never more. Then comes the one with fewer slices.
    """
    found = [_with_time(shape, needs) for shape in _shapes(form, loop, needs.together)]

    def order(timed: Timed) -> tuple[float, ...]:
        shape = timed.shape
        time = _launch_time(TYPICAL_BATCH, shape.tiles, timed.tile_time, timed.sample_bytes)
        return time, -shape.slices.width, -shape.slices.channels, shape.shared_bytes

    return sorted(found, key=order)


TYPICAL_BATCH = 64


@dataclass(eq=False)
class Candidate:
    """A choice, and how it lies in memory, or why it does not."""

    choice: Choice
    shape: Shape | None
    refused: str = ""


@lru_cache(maxsize=8)
def _shapes(form: ConvForm, loop: str, needs: Needs) -> tuple[Shape, ...]:
    """All that fit; what different epilogues make of one convolution is asked in a row."""
    return tuple(c.shape for c in candidates(form, loop, needs) if c.shape is not None)


def candidates(form: ConvForm, loop: str, needs: Needs) -> Iterator[Candidate]:
    """Every choice with its shape or the reason why it has none."""
    for sample in _samples(form, ARITHMETIC[loop], needs):
        kept = [_Halo(sample, sample.used(multiple)) for multiple in _multiples(needs)]
        places = [(halo, list(_slices(sample, halo.used, needs))) for halo in kept]
        for choice, (halo, slices) in every(_variants(sample), places):
            refused = choice.refused(halo.used)
            reduced = needs.early or (needs.across and choice.pixels)
            if reduced and choice.accumulators > MOST_REDUCED:
                refused = refused or "too many accumulators to be reduced beside one another"
            if not slices:
                refused = refused or "its results do not fit the shared memory"
            if refused:
                yield Candidate(choice, None, refused)
                continue
            memory = _Memory(choice, halo, BOX_BYTES)
            for each in slices:
                yield _shaped(memory, each)


def _multiples(needs: Needs) -> list[Extents]:
    """What a tile may hold whole numbers of.

    Of windows that overlap it holds 7 or 15 in a row, not 8 or 16. Sectors that two tiles write in
    part are slow, so whole ones are tried too.
    """
    depth, height, width = needs.multiple
    if needs.pool is None or needs.pool.overlap[2] == 0:
        return [needs.multiple]
    return [needs.multiple, (depth, height, math.lcm(width, SECTOR))]


def _samples(form: ConvForm, loop: Arithmetic, needs: Needs) -> Iterator[Choice]:
    """One for each way to lay out places and channels; they differ in nothing else."""
    for merge in _merges(form):
        for pixels, rows, channels in _products(form, merge, needs):
            for blocks, split, along in every(BLOCKS, SPLITS, (False, True)):
                sample = Choice(
                    *(form, loop, merge, pixels, rows, blocks, channels, split, 1),
                    weights=RESIDENT,
                    along=along,
                    pool=needs.pool or side_by_side(ONES, form.out_size),
                )
                if _sensible(sample, needs):
                    yield sample


def _variants(sample: Choice) -> Iterator[Choice]:
    """The same with all stages, and all places for the weights."""
    for chunks, weights in every(_stages(sample.all_chunks), WEIGHTS):
        choice = replace(sample, chunks=chunks, weights=weights)
        if weights != OWN or choice.may_own:
            yield choice


def _merges(form: ConvForm) -> list[int]:
    """How many groups are multiplied as one: so many that they fill a chunk, or no more."""
    if form.groups == 1:
        return [1]
    fitting = [
        m
        for m in range(1, form.groups + 1)
        if form.groups % m == 0 and (m == 1 or m * form.cin // form.groups <= 64)
    ]
    return fitting[-4:]


def _products(form: ConvForm, merge: int, needs: Needs) -> Iterator[tuple[bool, int, int]]:
    """Places or weights as rows, rows of eight places in a product, channels of a warpgroup."""
    out = form.cout * merge // form.groups
    together = needs.channels_together
    for width in WIDTHS:
        whole = form.groups == merge or out % width == 0
        nearest = width == next((w for w in WIDTHS if w >= min(out, 128)), 0)
        narrow = form.transposed and width in (16, 32) and width < out  # phases need room
        all_of_them = together == 1 or width >= out
        if whole and (nearest or narrow) and together <= width and all_of_them:
            yield True, 8, width
    high = 1
    while high <= 2:
        enough = together <= 8 or (high * 64 >= out)
        if enough and (high - 1) * 64 < out and out > 16:
            for rows in _rows(form):
                yield False, rows, 64 * high
        high *= 2


def _rows(form: ConvForm) -> list[int]:
    """Rows of a product: the usual ones, and those that waste least of the output's height."""
    places = form.out_size[1] // (form.stride[1] if form.transposed else 1)
    by_waste = sorted(ROWS, key=lambda rows: (-places % rows / rows + 1 / rows, -rows))
    return list(dict.fromkeys([16, 8, *by_waste[:2]]))


def _sensible(choice: Choice, needs: Needs) -> bool:
    """Not more than half of a tile is beyond the output, if it can be helped."""
    if choice.split == "C" and (
        choice.group_out <= choice.channels or needs.channels_together > choice.channels
    ):
        return False
    if choice.along and choice.axes[1].out > 1 and choice.axes[2].places <= 4 * choice.rows:
        return False
    if choice.blocks == (1, 1, 1) and choice.split == "Y" and not choice.along:
        return True  # the smallest tile, for outputs that are smaller still
    least = (1, 1 if choice.along else choice.rows, 8 * choice.rows if choice.along else 8)
    return all(
        many <= few or many < 2 * axis.places
        for many, few, axis in zip(choice.block, least, choice.axes, strict=True)
    )


def _stages(chunks: int) -> list[int]:
    return sorted({n for n in (1, 2, 3, 4, 6, 8, chunks) if n <= chunks and n <= 16})


def _shaped(large: _Memory, slices: Slices) -> Candidate:
    choice, memory = large.choice, large
    stages, ahead = large.rings(slices.bytes)
    if stages < 2 and large.box is not None:
        memory = replace(large, box_bytes=BOX_BYTES // 2)
        stages, ahead = memory.rings(slices.bytes)
    if stages < 2:
        needed = large.fixed + slices.bytes
        return Candidate(choice, None, f"{needed >> 10} KB and no two stages")
    sixteen = slices.threads == 32 and slices.channels == 16
    if sixteen and memory.rings(slices.bytes // 2) != (stages, ahead):
        return Candidate(choice, None, "slices of eight channels leave room for another stage")
    return Candidate(choice, Shape(choice, large.seen.used, slices, memory, stages, ahead))


@dataclass(eq=False)
class Shape:
    """A choice with the slices of its results and the stages that shared memory has room for."""

    choice: Choice
    used: Extents
    slices: Slices
    memory: _Memory
    stages: int
    ahead: int

    @cached_property
    def shared_bytes(self) -> int:
        return self.memory.total(self.slices.bytes, self.stages, self.ahead)

    @property
    def fed(self) -> Shape:
        """The same with boxes that are converted sooner, and no fewer bytes on their way.

        They are at most twice as large: nothing of a box is converted before all of it has come.
        """
        before = self.memory
        best = self
        for most in BOXES_BYTES if before.box is not None else ():
            memory = replace(before, box_bytes=most)
            ahead = max(2, -(-self.ahead * before.piece // memory.piece))
            sooner = memory.feeding < best.memory.feeding and memory.piece <= 2 * before.piece
            if sooner and memory.fits(self.slices.bytes, self.stages, ahead):
                best = replace(self, memory=memory, ahead=ahead)
        return best

    # What a tile takes whatever its epilogue does, in clocks.

    @property
    def visits(self) -> int:
        """How often a tile goes through its stages."""
        choice = self.choice
        return choice.phases if choice.phases > 1 and choice.stages_of_tile > 1 else 1

    @cached_property
    def products(self) -> float:
        m, choice, width = CONVOLVING, self.choice, self.choice.columns
        clocks = max(width / 2, (2048 + 32 * width) / m.shared_rate, m.least_product)
        steps = sum(choice.depth_steps) * choice.stages_of_tile * choice.loop.products
        return 2 * choice.parts * steps * clocks

    @cached_property
    def feeding(self) -> float:
        m, choice, memory = CONVOLVING, self.choice, self.memory
        clocks = memory.rounds * (m.feed_split if choice.loop.planes == 2 else m.feed)
        if memory.box is None:
            clocks += memory.rounds * m.copied
        else:
            clocks += memory.boxes * m.box + memory.rows * m.row
        return (clocks + m.feed_stage) * choice.stages_of_tile * self.visits

    @cached_property
    def fetching(self) -> float:
        choice, memory = self.choice, self.memory
        fetched = memory.units * choice.stages_of_tile * self.visits * 8 * choice.loop.bytes
        if not choice.resident:
            fetched += memory.weights * choice.stages_of_tile
        return fetched / CONVOLVING.fetch_rate

    @cached_property
    def results(self) -> float:
        """Of a thread."""
        choice = self.choice
        return math.prod(self.used) * choice.spread * choice.channels / 128

    @cached_property
    def tiles(self) -> int:
        """Of a sample."""
        choice = self.choice
        handed = zip(choice.windows.count, choice.handed(self.used), choice.times, strict=True)
        return math.prod(-(-n // (each * t)) for n, each, t in handed) * choice.channel_tiles

    @property
    def constants(self) -> dict[str, int]:
        """Of the kernel."""
        choice, used, memory = self.choice, self.used, self.memory
        threads, channels, depth, height, width, pitch = self.slices
        form = choice.form
        deep, tall, _ = memory.box or ONES
        times = dict(zip("ZYX", choice.times, strict=True))
        windows = choice.windows
        mean = form.mean or Mean(ONES, form.kernel, (0, 0, 0), ONES, form.transposed)
        out = tuple(a.places for a in choice.axes) if choice.of_phases else form.out_size
        each = {
            f"k{name}{axis}": numbers[at]
            for name, numbers in (
                ("In", form.in_size),
                ("Out", out),
                ("Kernel", form.kernel),
                ("Stride", form.stride),
                ("Pad", form.padding),
                ("Dilation", form.dilation),
                ("Mean", mean.window),
                ("OwnKernel", mean.kernel),
                ("OwnFirst", mean.first),
                ("OwnStep", mean.step),
                ("Window", windows.window),
                ("WindowStep", windows.step),
                ("WindowPad", windows.before),
                ("Seen", windows.count),
            )
            for at, axis in enumerate(AXES)
        }
        return {
            "kCin": form.cin,
            "kCout": form.cout,
            "kGroups": form.groups,
            "kMerge": choice.merge,
            **each,
            "kTransposed": int(form.transposed),
            "kOwnTransposed": int(mean.transposed),
            "kPack": choice.pack,
            "kPhaseMax": int(choice.of_phases),
            "kPixelsOnM": int(choice.pixels),
            "kRows": choice.rows,
            "kAlongX": int(choice.along),
            "kBlocksZ": choice.blocks[0],
            "kBlocksY": choice.blocks[1],
            "kBlocksX": choice.blocks[2],
            "kChannels": choice.channels,
            "kDeep": used[0],
            "kTall": used[1],
            "kWide": used[2],
            "kSplitC": 2 if choice.split == "C" else 1,
            **{f"kSplit{axis}": n for axis, n in times.items()},
            "kChunks": choice.chunks,
            "kStages": self.stages,
            "kAhead": self.ahead,
            "kBoxed": int(memory.box is not None),
            "kBoxDeep": deep,
            "kBoxTall": tall,
            "kResident": int(choice.resident),
            "kWeightRing": choice.weight_ring,
            "kPromote": PROMOTE if choice.promotes else 0,
            "kTileChannels": channels,
            "kTileD": depth,
            "kTileH": height,
            "kTileW": width,
            "kTilePitch": pitch,
            "kEpilogueThreads": threads,
            "kUnscaled": int(choice.loop.scaled and choice.phases == 1),
        }


@dataclass(eq=False)
class Timed:
    """A shape, what a tile of it takes in microseconds, and what bounds that."""

    shape: Shape
    tile_time: float
    bound: str
    sample_bytes: int

    @property
    def config(self) -> ConvConfig:
        shape, choice = self.shape.fed, self.shape.choice
        threads, channels, depth, height, width, pitch = shape.slices
        kilobytes = shape.shared_bytes >> 10
        return ConvConfig(
            *(channels, depth, height, width, pitch, threads),
            tuple(shape.constants.items()),
            f"{choice}; {shape.stages} stages, {kilobytes} KB, bound by {self.bound}",
            self.tile_time,
            shape.tiles,
            self.sample_bytes,
            shape.shared_bytes,
            choice.channel_tiles * choice.stages_of_tile * shape.memory.weights,
            choice.channel_tiles * choice.block_channels * 8,
        )


def _with_time(shape: Shape, needs: Needs) -> Timed:
    choice, used = shape.choice, shape.used
    threads, _, depth, height, width, _ = shape.slices
    stores = needs.stores or max(choice.windows.overlap) > 0
    writing = _writing(choice, used, width) if stores else 0.0
    handed = math.prod(choice.handed(used))
    parts = handed // (depth * height * width) if threads > 32 else 1
    time, bound = _tile_time(shape, writing, parts, needs)
    form = choice.form
    elements = form.cin * math.prod(form.in_size)
    if stores:
        elements += form.cout * math.prod(choice.windows.count)
    return Timed(shape, time, bound, elements * choice.loop.bytes)


def _slices(choice: Choice, used: Extents, needs: Needs) -> Iterator[Slices]:
    """What an epilogue may be given: the largest slice that fits, and of phases each that does."""
    depth, height, width = choice.handed(used)
    warps = not choice.pixels and needs.channels_together in (1, 2, 4, 8) and choice.phases == 1
    if warps and not needs.early:  # half as many slices, if they are small
        pitch = _pitch(depth * height * width, False)
        whole = choice.groups == 1 or choice.group_out % 16 == 0
        if whole and 16 * pitch * 4 * 8 <= SMALL_BYTES:
            yield Slices(32, 16, depth, height, width, pitch)
    threads, channels = (32, 8) if warps else (128, choice.channels)
    if choice.groups > 1 and choice.group_out % channels:
        return
    multiple = needs.multiple
    heights = [h for h in range(height, 0, -1) if height % h == 0 and h % multiple[1] == 0]
    depths = [d for d in range(depth, 0, -1) if depth % d == 0 and d % multiple[0] == 0]
    if choice.phases == 1:
        boxes = list(every(depths[-1:], heights))
    else:  # all in one slice, or one for each depth, or one for each depth and row
        alone = [used[i] == 1 and multiple[i] == 1 for i in (0, 1)]
        boxes = [(depth, height)] if depth in depths and height in heights else []
        boxes += [(1, height)] if alone[0] and depth > 1 and height in heights else []
        boxes += [(1, 1)] if alone[1] and height > 1 and (alone[0] or depth == 1) else []
    most = SLICE_BYTES if choice.phases == 1 else PHASES_BYTES
    for d, h in boxes:
        pitch = _pitch(d * h * width, choice.pixels)
        if channels * pitch * 4 * (256 // threads) <= most:
            yield Slices(threads, channels, d, h, width, pitch)
            if choice.phases == 1:
                return


def _pitch(places: int, pixels: bool) -> int:
    """The next number that spreads the stores of a warp over all banks."""
    modulus, rest = (16, 4) if pixels else (32, 8)
    return places + (rest - places) % modulus


@dataclass(eq=False)
class _Halo:
    """What a block's tile sees of the input, whatever its stages and weights are."""

    sample: Choice
    used: Extents
    boxes: dict[int, Extents | None] = field(default_factory=dict, compare=False)

    @cached_property
    def size(self) -> Extents:
        advance = self.sample.advance(self.used)
        z, y, x = (
            (further * (t - 1) + n - 1) * a.step + a.reach + 1
            for n, further, t, a in zip(
                self.used, advance, self.sample.times, self.sample.axes, strict=True
            )
        )
        return z, y, x

    @property
    def box_channels(self) -> int:
        return min(8 // self.sample.pack, self.sample.group_in)

    def box(self, most: int) -> Extents | None:
        """The part of a chunk that the copy engine brings at once: at most so many bytes.

        None if rows do not allow that.
        """
        if most not in self.boxes:
            self.boxes[most] = self._box(most)
        return self.boxes[most]

    def _box(self, most: int) -> Extents | None:
        z, y, x = self.size
        last = self.sample.axes[2]
        windows = self.sample.windows
        across = self.sample.advance(self.used)[2] * self.sample.times[2]
        one_tile = across * last.spread >= windows.count[2] * windows.step[2]
        first = last.first - windows.before[2] * last.step
        # A box begins at a multiple of 16 bytes.
        lead = first % 4 if one_tile or across * last.step % 4 == 0 else 3
        wide = -(-(lead + x + (last.pack - 1) * last.dilation) // 4) * 4
        if not self.sample.loop.scaled or last.size % 4 or max(wide, z, y) > MOST_BOX:
            return None
        rows = min(most // (self.box_channels * wide * 4), BOX_PLACES // x)
        tall = max((n for n in range(1, y + 1) if y % n == 0 and n <= rows), default=1)
        deep = max(n for n in range(1, z + 1) if z % n == 0 and (n == 1 or n * y <= rows))
        return deep, tall, wide


@dataclass(eq=False)
class _Memory:
    """Shared memory of a block in bytes, as ConvMemory of kernels/conv_memory.cuh has it."""

    choice: Choice
    seen: _Halo
    box_bytes: int  # a box has no more of them

    @property
    def halo(self) -> Extents:
        return self.seen.size

    @property
    def units(self) -> int:
        return self.choice.chunks * math.prod(self.halo)

    @property
    def box(self) -> Extents | None:
        return self.seen.box(self.box_bytes)

    @property
    def boxes(self) -> int:
        """Of a stage."""
        assert self.box is not None
        deep, tall, _ = self.box
        return self.choice.chunks * (self.halo[0] // deep) * (self.halo[1] // tall)

    @property
    def rows(self) -> int:
        """Of all boxes of a stage."""
        assert self.box is not None
        return self.boxes * self.box[0] * self.box[1] * self.seen.box_channels

    @property
    def rounds(self) -> int:
        """Units of a stage that a feeding thread converts."""
        if self.box is None:
            return -(-self.units // 128)
        return self.boxes * self.box_units

    @property
    def feeding(self) -> int:
        """What a stage costs a feeding thread, in units that it converts.

        To wait for a box is one, and so is to wait for units that it loads at once.
        """
        return self.boxes * (1 + -(-self.box_units // UNITS_AT_ONCE) + self.box_units)

    @property
    def box_units(self) -> int:
        """Of a box, those that a feeding thread converts."""
        assert self.box is not None
        deep, tall, _ = self.box
        return -(-deep * tall * self.halo[2] // 128)

    @cached_property
    def piece(self) -> int:
        """Bytes of a box, or of what all feeding threads copy in a round."""
        if self.box is None:
            return (2 if self.units > 128 else 1) * 4096 if self.choice.loop.scaled else 0
        return -(-self.seen.box_channels * math.prod(self.box) * 4 // 128) * 128

    @cached_property
    def stage(self) -> int:
        z, y, x = self.halo
        step = self.choice.axes[2].step
        pitch = -(-x // step) * step
        return self.choice.loop.planes * self.choice.chunks * z * y * pitch * 16

    @cached_property
    def weights(self) -> int:
        """Of one stage, all phases."""
        c = self.choice
        return c.loop.planes * 2 * sum(c.depth_steps) * c.block_channels * 16

    @cached_property
    def ring(self) -> int:
        c = self.choice
        if c.weights != STAGED:
            return 0
        revisits = c.phases > 1 and c.stages_of_tile > 1
        steps = max(c.depth_steps) if revisits else sum(c.depth_steps)
        return c.loop.planes * 2 * steps * c.block_channels * 16

    @cached_property
    def fixed(self) -> int:
        c = self.choice
        kept = (c.stages_of_tile if c.resident else c.weight_ring) * self.weights
        places = math.prod(self.halo) * 8 if self.box is None else 0
        lists = (sum(c.depth_steps) + c.phases + 1) * 4 + 8 + places
        scales = c.channel_tiles * c.block_channels * 8
        return kept + lists + scales

    def total(self, slices: int, stages: int, ahead: int) -> int:
        ring = -(-stages * (self.stage + self.ring) // 128) * 128
        return self.fixed + slices + ring + 128 + ahead * self.piece

    def fits(self, slices: int, stages: int, ahead: int) -> bool:
        return self.total(slices, stages, ahead) <= CONVOLVING.shared_bytes

    def rings(self, slices: int) -> tuple[int, int]:
        """Stages, and pieces of the input that are on their way; no stages if nothing fits."""
        if not self.fits(slices, 2, 2):
            return 0, 0
        enough = 4 if self.box is None else max(2, min(8, RAW_BYTES // self.piece))
        for stages in (4, 3):
            if self.fits(slices, stages, enough):
                return stages, enough
        return 2, next(n for n in range(enough, 1, -1) if self.fits(slices, 2, n))


def _writing(choice: Choice, used: Extents, width: int) -> float:
    """Clocks to write a tile's results.

    A sector of memory that two blocks write in part is slow; rows whose length is no multiple of a
    sector have one at each end of a run, unless the tile has all of the row.
    """
    m = CONVOLVING
    row = choice.windows.count[2]
    whole = width >= row
    aligned = row % SECTOR == 0 and width % SECTOR == 0
    runs = math.prod(choice.handed(used)) / width * choice.block_channels
    runs *= math.prod(choice.times)
    return runs * (m.run if whole or aligned else m.broken_run)


def _tile_time(shape: Shape, writing: float, parts: int, needs: Needs) -> tuple[float, str]:
    """Microseconds that a block's tile takes, and what bounds it."""
    m, choice = CONVOLVING, shape.choice
    results = shape.results
    window, step = math.prod(choice.pool.window), math.prod(choice.pool.step)
    ending = results * (m.ending + m.operation * needs.operations) / step
    if choice.pixels and choice.phases == 1:
        ending += results * m.single
    if window > 1:
        ending += results * m.windows * window / step  # as often as a window sees a result
    ending += (parts - 1) * m.slice
    if needs.across and choice.pixels:
        ending = results * m.early * needs.across
    if needs.early:
        ending = (ending if needs.stores else 0.0) + results * m.early * needs.early
        ending += choice.channels * m.meet if choice.pixels else 0.0
    if choice.phases > 1:
        ending += results * m.phases[0 if choice.pixels else 1]
    products = shape.products
    if choice.stages_of_tile == 1:
        working = max(products, products / 2 + ending)  # one ends while the other multiplies
    else:
        working = products + ending
    bounds = {
        "products": working + writing,
        "feeding": shape.feeding,
        "the L2 cache": shape.fetching,
    }
    slowest, *others = sorted(bounds, key=lambda name: -bounds[name])
    took = bounds[slowest] + m.shared[shape.stages - 2] * bounds[others[0]] + m.per_tile
    return took / m.clock, slowest


def room(form: ConvForm, config: ConvConfig, loop: str) -> tuple[Buffer, ...]:
    """Memory that a launch needs: the packed weights and their scales."""
    assert loop in ARITHMETIC and form.cout > 0
    return (
        Buffer("packed_weight", (config.packed_bytes,), torch.uint8),
        Buffer("weight_scales", (config.scale_bytes,), torch.uint8),
    )
