"""A tile of a generated convolution in shared memory, what it takes by a model, and its constants.

The numbers of the model are in targets/: the products, the feeding warps, the epilogue, memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from kernelwright.lower.conv_choice import ONES, PROMOTE, Choice, Needs, Slices
from kernelwright.lower.conv_memory import Memory
from kernelwright.plan.convolutions import Extents, Mean
from kernelwright.plan.tiles import Box
from kernelwright.targets.target import Convolving

AXES = "DHW"
SECTOR = 8  # floats that memory writes together
BOXES_BYTES = [n << 10 for n in (4, 8, 12, 16, 24)]  # of a box, when the stages are known
FEW_CHUNKS = 8  # of an input


@dataclass(frozen=True)
class Launch:
    """What a convolution takes by the model, in microseconds.

    A block takes `tile_time` for each of its tiles. A sample has so many `tiles`, and reads and
    writes `sample_bytes`.
    """

    model: Convolving
    tile_time: float
    tiles: int
    sample_bytes: int

    def time(self, batch: int) -> float:
        waves = math.ceil(batch * self.tiles / self.model.processors)
        memory = batch * self.sample_bytes / self.model.memory_rate
        working = waves * self.tile_time
        return max(working, memory) + 0.25 * min(working, memory) + self.model.overhead


@dataclass(frozen=True)
class ConvConfig:
    """The slices that the epilogue is given, and all constants of the kernel.

    A thread has so many `sums`.
    """

    channels: int
    depth: int
    height: int
    width: int
    pitch: int
    threads: int
    sums: int
    constants: tuple[tuple[str, int], ...]
    why: str
    launch: Launch
    shared_bytes: int
    packed_bytes: int
    scale_bytes: int

    @property
    def box(self) -> Box:
        """Of one sample, what an epilogue is given."""
        return 1, self.channels, self.depth, self.height, self.width

    def time(self, batch: int) -> float:
        """Of the convolution alone with a pointwise epilogue, packing included."""
        return self.launch.time(batch)


@dataclass(eq=False)
class Shape:
    """A choice with the slices of its results and the stages that shared memory has room for."""

    slices: Slices
    memory: Memory
    stages: int
    ahead: int

    @property
    def choice(self) -> Choice:
        return self.memory.choice

    @property
    def model(self) -> Convolving:
        return self.choice.given.loop.tiles

    @property
    def used(self) -> Extents:
        return self.memory.seen.used

    @cached_property
    def shared_bytes(self) -> int:
        return self.memory.total(self.slices.bytes, self.stages, self.ahead)

    @property
    def fed(self) -> Shape:
        """The same with boxes that are converted sooner, and no fewer bytes on their way.

        They are at most twice as large: nothing of a box is converted before all of it has come.
        """
        before = self.memory.boxes
        if before is None:
            return self
        best, best_ahead = before, self.ahead
        room = self.model.shared_bytes - self.memory.total(self.slices.bytes, self.stages, 0)
        for most in BOXES_BYTES:
            boxes = self.memory.seen.boxes(most)
            assert boxes is not None
            ahead = max(2, -(-self.ahead * before.bytes // boxes.bytes))
            sooner = boxes.effort < best.effort and boxes.bytes <= 2 * before.bytes
            if sooner and ahead * boxes.bytes <= room:
                best, best_ahead = boxes, ahead
        if best is before:
            return self
        return replace(self, memory=replace(self.memory, boxes=best), ahead=best_ahead)

    # What a tile takes whatever its epilogue does, in clocks.

    @cached_property
    def products(self) -> float:
        m, choice, width = self.model, self.choice, self.choice.columns
        clocks = max(width / 2, (2048 + 32 * width) / m.shared_rate, m.least_product)
        steps = sum(choice.depth_steps) * choice.stages_of_tile * choice.given.loop.products
        return 2 * choice.parts * steps * clocks

    @cached_property
    def feeding(self) -> float:
        m, choice, memory = self.model, self.choice, self.memory
        clocks = memory.rounds * (m.feed_split if choice.given.loop.planes == 2 else m.feed)
        if (boxes := memory.boxes) is None:
            clocks += memory.rounds * m.copied
        else:
            row = m.row[0 if choice.given.all_chunks <= FEW_CHUNKS else 1]
            clocks += choice.chunks * (boxes.count * m.box + boxes.rows * row)
        return (clocks + m.feed_stage) * choice.stages_of_tile * choice.visits

    @cached_property
    def fetching(self) -> float:
        choice, memory = self.choice, self.memory
        fetched = (
            memory.units
            * choice.stages_of_tile
            * choice.visits
            * 8
            * choice.given.loop.dtype.itemsize
        )
        if not choice.resident:
            fetched += memory.weights * choice.stages_of_tile
        return fetched / self.model.fetch_rate

    @cached_property
    def results(self) -> float:
        """Of a thread."""
        choice = self.choice
        return math.prod(self.used) * choice.given.spread * choice.channels / 128

    @cached_property
    def tiles(self) -> int:
        """Of a sample."""
        choice, count = self.choice, self.choice.given.windows.count
        handed = zip(count, self.memory.seen.handed, choice.times, strict=True)
        return math.prod(-(-n // (each * t)) for n, each, t in handed) * choice.channel_tiles

    @property
    def constants(self) -> dict[str, int]:
        """Of the kernel."""
        choice, used, memory = self.choice, self.used, self.memory
        threads, channels, depth, height, width, pitch = self.slices
        given, form, windows = choice.given, choice.given.form, choice.given.windows
        deep, tall, _ = memory.boxes.size if memory.boxes else ONES
        times = dict(zip("ZYX", choice.times, strict=True))
        mean = form.mean or Mean(ONES, form.kernel, (0, 0, 0), ONES, form.transposed)
        out = tuple(a.places for a in given.axes) if given.of_phases else form.out_size
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
            "kMerge": given.merge,
            **each,
            "kTransposed": int(form.transposed),
            "kOwnTransposed": int(mean.transposed),
            "kPack": given.pack,
            "kPhaseMax": int(given.of_phases),
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
            "kBoxed": int(memory.boxes is not None),
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
            "kUnscaled": int(given.loop.scaled and given.phases == 1),
        }


@dataclass(eq=False)
class Timed:
    """A shape, what it takes, and what bounds that."""

    shape: Shape
    launch: Launch
    bound: str

    @property
    def config(self) -> ConvConfig:
        shape, choice = self.shape, self.shape.choice
        threads, channels, depth, height, width, pitch = shape.slices
        kilobytes = shape.shared_bytes >> 10
        return ConvConfig(
            *(channels, depth, height, width, pitch, threads, choice.accumulators),
            tuple(shape.constants.items()),
            f"{choice}; {shape.stages} stages, {kilobytes} KB, bound by {self.bound}",
            self.launch,
            shape.shared_bytes,
            choice.channel_tiles * choice.stages_of_tile * shape.memory.weights,
            choice.channel_tiles * choice.block_channels * 8,
        )


def with_time(shape: Shape, needs: Needs) -> Timed:
    given = shape.choice.given
    threads, _, depth, height, width, _ = shape.slices
    stores = needs.stores or max(given.windows.overlap) > 0
    writing = _writing(shape) if stores else 0.0
    parts = math.prod(shape.memory.seen.handed) // (depth * height * width) if threads > 32 else 1
    time, bound = _tile_time(shape, writing, parts, needs)
    elements = given.form.cin * math.prod(given.form.in_size)
    if stores:
        elements += given.form.cout * math.prod(given.windows.count)
    return Timed(
        shape, Launch(shape.model, time, shape.tiles, elements * given.loop.dtype.itemsize), bound
    )


def _writing(shape: Shape) -> float:
    """Clocks to write a tile's results.

    A sector of memory that two blocks write in part is slow; rows whose length is no multiple of a
    sector have one at each end of a run, unless the tile has all of the row.
    """
    m, choice, width = shape.model, shape.choice, shape.slices.width
    row = choice.given.windows.count[2]
    whole = width >= row
    aligned = row % SECTOR == 0 and width % SECTOR == 0
    runs = math.prod(shape.memory.seen.handed) / width * choice.block_channels
    runs *= math.prod(choice.times)
    return runs * (m.run if whole or aligned else m.broken_run)


def _tile_time(shape: Shape, writing: float, parts: int, needs: Needs) -> tuple[float, str]:
    """Microseconds that a block's tile takes, and what bounds it."""
    m, choice, given = shape.model, shape.choice, shape.choice.given
    results = shape.results
    window, step = math.prod(given.pool.window), math.prod(given.pool.step)
    ending = results * (m.ending + m.operation * needs.operations) / step
    if choice.pixels and given.phases == 1:
        ending += results * m.single
    if window > 1:
        ending += results * m.windows * window / step  # as often as a window sees a result
    ending += (parts - 1) * m.slice
    if needs.across and choice.pixels:
        ending = results * m.early * needs.across
    if needs.early:
        ending = (ending if needs.stores else 0.0) + results * m.early * needs.early
        ending += choice.channels * m.meet if choice.pixels else 0.0
    if given.phases > 1:
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
    if choice.accumulators > m.roomy:
        took *= m.crowded
    return took / m.clock, slowest
