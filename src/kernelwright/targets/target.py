"""What the compiler knows of a machine: one value for each architecture, in a file of its own.

`plan/` and `lower/` ask a Target and name no chip. Another architecture is another file beside this
one and, where it has instructions of its own, kernels and Loops for them. Times are microseconds,
rates are bytes or operations a microsecond; how they were measured stands where the values are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch

from kernelwright.targets.processor import Processor

# Numbers of rows that are compared; behind the last one a product is the library's.
LIBRARY_TILE = 64
ROWS = tuple(sorted({base << k for base in (64, 96) for k in range(9)}))


@dataclass(frozen=True)
class Lanes:
    """How a GPU's threads hold a row.

    `floats` is what a thread should keep of it (enough loads in flight, few enough registers) and
    `most_floats` what it may; up to `most_threads` work on one, and `cluster` blocks of them. Of so
    large blocks `blocks` run at once.
    """

    warp: int
    most_threads: int
    floats: int
    most_floats: int
    blocks: int
    cluster: int = 1


@dataclass(frozen=True)
class Tiling:
    """What the generated products of a target share, and what their launches cost.

    A tile has `rows` rows and is multiplied in stages of `stage_depth`; a stage holds
    `stage_row_bytes` of each row, and at most `most_stages` fit the `shared_bytes`. Blocks of a
    cluster work on neighbouring tiles; tiles are walked in bands of so many down. The first of
    `clusters` and of `bands` is taken where others would be the same. `library_overhead` is that of
    the library's product with the kernel after it, `kernel_overhead` that of such a kernel alone.
    `kernel` is the template of them all, which has a header of this name, `major` the type in which
    it is told whether rows or the depth of an operand lie side by side.
    """

    kernel: str
    major: str
    capability: tuple[int, int]
    processors: int
    rows: int
    stage_depth: int
    stage_row_bytes: int
    shared_bytes: int
    most_stages: int
    widths: tuple[int, ...]
    clusters: tuple[int, ...]
    bands: tuple[int, ...]
    overhead: float
    library_overhead: float
    kernel_overhead: float
    split_rate: float
    read_rate: float


@dataclass(frozen=True)
class ThinShape:
    """How a thin product goes about up to so many rows.

    Each of the blocks that run together has `columns` columns for itself, as far as it shares
    nothing; `step` is the time of a stage, `base` that of everything before and after the stages.
    """

    rows: int
    columns: int
    base: float
    step: float


@dataclass(frozen=True)
class Thin:
    """A product of few rows that reads its right operand once, whole, and splits it on the way.

    `shapes` are in the order of their rows. `blocks` run together, each on a part of the depth of
    some columns; another wave of them takes `wave` to begin, and each part `part` to be added up.
    It pays for right operands of at least `fewest` elements whose rows are a `multiple`. `kernel`
    is its header.
    """

    kernel: str
    shapes: tuple[ThinShape, ...]
    blocks: int
    stage_depth: int
    wave: float
    part: float
    fewest: int
    multiple: int

    @property
    def most(self) -> int:
        return self.shapes[-1].rows

    def pays(self, columns: int, depth: int) -> bool:
        return columns * depth >= self.fewest and depth % self.multiple == 0

    def parts(self, rows: int, columns: int, depth: int) -> int:
        """Into how many parts the depth is best cut."""
        stages = math.ceil(depth / self.stage_depth)
        counts = range(1, min(stages, self.blocks) + 1)
        return min(counts, key=lambda parts: self._time(rows, columns, stages, parts))

    def time(self, rows: int, columns: int, depth: int) -> float:
        stages = math.ceil(depth / self.stage_depth)
        return self._time(rows, columns, stages, self.parts(rows, columns, depth))

    def _time(self, rows: int, columns: int, stages: int, parts: int) -> float:
        shape = next(s for s in self.shapes if rows <= s.rows)
        waves = math.ceil(math.ceil(columns / shape.columns) * parts / self.blocks)
        each = self.wave + math.ceil(stages / parts) * shape.step
        return shape.base + waves * each + parts * self.part


MANY = 1 << 40  # rows: as many as there are


@dataclass(frozen=True)
class HostWay:
    """For which rows a processor with an instruction set makes products by a kernel of ours.

    `feature` is the set's name as the system tells it. From `fewest` rows on, up to `most`, the
    kernel is faster than the library where a weight has `columns`, a `depth` and a `weight` of so
    many numbers at least and there is `work`, multiplications; if it is for operands that lie
    `along` the depth, for no others. A library that takes no more than `slack` times as long for a
    few rows as reading their weight is not beaten.
    """

    feature: str
    text: str
    fewest: int
    most: int
    columns: int
    depth: int
    weight: int = 0
    work: int = 0
    along: bool = False
    slack: float = 0.0

    def takes(self, rows: int) -> bool:
        return self.fewest <= rows <= self.most

    def pays_on(self, processor: Processor) -> bool:
        return processor.few > self.slack

    def fits(self, columns: int, depth: int, along: bool) -> bool:
        large = columns >= self.columns and depth >= self.depth and columns * depth >= self.weight
        return large and (along or not self.along) and self.fewest <= self.most

    def for_sizes(self, columns: int, depth: int) -> HostWay:
        """With the rows from which on these sizes are enough work."""
        return replace(self, fewest=max(self.fewest, -(-self.work // max(1, columns * depth))))

    def __str__(self) -> str:
        upto = f"{self.fewest} to {self.most}" if self.most < MANY else f"{self.fewest} or more"
        return f"{upto} rows ({self.text})"


@dataclass(frozen=True)
class HostWays:
    """The kernels of a processor for products, and the settings that they are for.

    `processor` tells of the one that they will run on, where that is this one.
    """

    ways: tuple[HostWay, ...]
    precisions: tuple[str, ...]
    processor: Callable[[], Processor] | None = field(default=None, compare=False)

    def fitting(self, columns: int, depth: int, along: bool) -> tuple[HostWay, ...]:
        found = (way.for_sizes(columns, depth) for way in self.ways)
        fit = tuple(way for way in found if way.fits(columns, depth, along))
        if not fit or self.processor is None:
            return fit
        here = self.processor()
        return tuple(way for way in fit if way.pays_on(here))


@dataclass(frozen=True)
class Loop:
    """One main loop of a generated product: an arithmetic, its tiles, its times.

    It multiplies operands of a `dtype`; for float32 `precision` is the setting that it is made for.
    `planes` says into how many float16 numbers each float32 operand is split on the way; 0: the
    operands are multiplied as they are in memory, and then their rows must be a `multiple` of 16
    bytes, since tensor copies move no less. `widths` are the tiles whose accumulators fit the
    registers: two planes have them twice, once for the tensor cores and once to add these up in
    float32. `stage` is the time of one stage and `ending` that of an epilogue, each for a tile of
    no columns and for each column of it; `library` is the rate of the library's product. `thin` is
    the same arithmetic for few rows. Its type in C++ is `symbol`.
    """

    name: str
    symbol: str
    text: str
    dtype: torch.dtype
    precision: str
    planes: int
    multiple: int
    widths: tuple[int, ...]
    stage: tuple[float, float]
    ending: tuple[float, float]
    library: float
    tiling: Tiling
    thin: Thin | None = None

    def tile_time(self, width: int, depth: int, extra: float = 0.0) -> float:
        """A tile; `extra` columns are multiplied with it, but have no epilogue."""
        stages = math.ceil(depth / self.tiling.stage_depth)
        stage = self.stage[0] + self.stage[1] * (width + extra)
        return stages * stage + self.ending[0] + self.ending[1] * width

    def tiles_time(self, width: int, rows: int, columns: int, depth: int, batch: int = 1) -> float:
        """The busiest multiprocessor's tiles of a width."""
        tiles = batch * math.ceil(rows / self.tiling.rows) * math.ceil(columns / width)
        return math.ceil(tiles / self.tiling.processors) * self.tile_time(width, depth)

    def generated_time(
        self, width: int, rows: int, columns: int, depth: int, batch: int = 1
    ) -> float:
        elements = batch * depth * (rows + columns)
        moved = (self.dtype.itemsize + 2 * self.planes) * elements if self.planes else 0
        tiles = self.tiles_time(width, rows, columns, depth, batch)
        return self.tiling.overhead + tiles + moved / self.tiling.split_rate

    def library_time(self, rows: int, columns: int, depth: int, batch: int = 1) -> float:
        """Of a batch, the library computes whole tiles, and the results are a part of its time."""
        moved = 0.0
        if batch > 1:
            rows, columns = (math.ceil(n / LIBRARY_TILE) * LIBRARY_TILE for n in (rows, columns))
            moved = batch * rows * columns * self.dtype.itemsize / self.tiling.read_rate
        computed = 2 * batch * rows * columns * depth / self.library
        read = batch * columns * depth * self.dtype.itemsize / self.tiling.read_rate
        return self.tiling.library_overhead + max(computed, read) + moved

    def thin_time(self, rows: int, columns: int, depth: int) -> float:
        """The product of few rows and the kernel after it; infinite where there is none."""
        if self.thin is None or rows > self.thin.most or not self.thin.pays(columns, depth):
            return math.inf
        moved = 2 * rows * columns * self.dtype.itemsize / self.tiling.read_rate
        return self.thin.time(rows, columns, depth) + self.tiling.kernel_overhead + moved

    def copy_time(self, matrix: str, rows: int, columns: int, depth: int, batch: int = 1) -> float:
        """A kernel that only brings the `left`, the `right` or the `result` into another order."""
        sides = {"left": rows * depth, "right": columns * depth, "result": rows * columns}
        moved = 2 * batch * sides[matrix] * self.dtype.itemsize
        return self.tiling.kernel_overhead + moved / self.tiling.read_rate

    def fewest(
        self,
        typical: int,
        columns: int,
        depth: int,
        each: int | None = None,
        thin: bool = True,
        copies: tuple[str, ...] = (),
    ) -> int | None:
        """The rows from which on the generated product is the fastest one; None: it never is.

        They are those of all products of a batch, if there are several of `each` rows. An emitted
        file has one tile for any number of rows, the best one for typically many. With `thin` it is
        compared with the thin product too. `copies` are the matrices that only the library's
        product needs copied.
        """

        def sizes(rows: int) -> tuple[int, int, int, int]:
            batch = 1 if each is None else math.ceil(rows / each)
            return each or rows, columns, depth, batch

        width = min(self.widths, key=lambda w: self.tiles_time(w, *sizes(typical)))
        found = None
        thin = thin and each is None
        beyond = {self.thin.most + 1} if thin and self.thin is not None else set()
        beyond |= {typical} if copies else set()  # they are close to the difference of the two
        for rows in sorted({*ROWS, *beyond}, reverse=True):
            other = self.library_time(*sizes(rows))
            if thin:
                other = min(other, self.thin_time(rows, columns, depth))
            other += sum(self.copy_time(matrix, *sizes(rows)) for matrix in copies)
            if self.generated_time(width, *sizes(rows)) >= other:
                break
            found = rows
        return found


@dataclass(frozen=True)
class Convolving:
    """What generated convolutions take on a multiprocessor, in clocks, of which a us has `clock`.

    A block has `shared_bytes`, of which the tensor cores read `shared_rate` bytes in a clock; no
    product is shorter than `least_product`. A feeding thread's unit takes `feed` (`feed_split` for
    two planes), `copied` more if the thread copies it for itself, and else a box `box` more and
    `row` for each of its rows, less where many channels are multiplied meanwhile; a stage takes
    `feed_stage` besides. A thread's result takes the epilogue `ending` and `operation` for each of
    its program's, `single` more where places are rows, whose results are not written in pairs,
    `phases` more where phases meet, first those of places that are rows; where only the largest of
    a window goes on, it takes that for each window, and `windows` for a result; an operation on a
    result in registers takes `early`, and where places are rows, threads `meet` for each channel.
    Writing a run of results takes `run`, or `broken_run` if it begins and ends within sectors; the
    L2 delivers `fetch_rate` bytes. Of what the second slowest of these takes, `shared` is not
    hidden behind the slowest, with two, three and four stages; a tile takes `per_tile` besides, and
    `slice` for each slice but the first where a warpgroup has one for all its channels; all of it
    is `crowded` times as long where a thread has more than `roomy` sums, which leave it few
    registers. `memory_rate` is in bytes a us, for the whole device, and `overhead` in us.
    """

    processors: int
    clock: float
    shared_bytes: int
    shared_rate: float
    least_product: float
    feed: float
    feed_split: float
    copied: float
    box: float
    row: tuple[float, float]
    feed_stage: float
    ending: float
    operation: float
    single: float
    phases: tuple[float, float]
    windows: float
    early: float
    meet: float
    run: float
    broken_run: float
    fetch_rate: float
    shared: tuple[float, float, float]
    per_tile: float
    slice: float
    roomy: int
    crowded: float
    memory_rate: float
    overhead: float


@dataclass(frozen=True)
class ConvLoop:
    """A main loop for convolutions of a dtype where `accuracy` is owed, and a model of its time.

    It is made of the instructions of one `capability`, its template is `kernel`, its type in C++
    `symbol`, and a block's tile takes what `tiles` says. It makes so many `products` of tensor
    cores for one, `rate` of these operations in a microsecond, and moves `memory` bytes meanwhile;
    an operand is multiplied as so many `planes`. A launch has an `overhead`, a kernel after it
    `kernel_overhead`, and computes `arithmetic` operations of its program in a microsecond.
    `library` is the library's rate with few channels, that with `library_channels`, and that of
    transposed convolutions in three dimensions.
    """

    name: str
    symbol: str
    text: str
    dtype: torch.dtype
    accuracy: str
    kernel: str
    tiles: Convolving
    capability: tuple[int, int]
    planes: int
    products: int
    rate: float
    library: tuple[float, float, float]
    library_channels: int
    memory: float
    overhead: float
    kernel_overhead: float
    arithmetic: float

    @property
    def scaled(self) -> bool:
        """Whether numbers are brought into the range of float16 before they are multiplied."""
        return self.dtype == torch.float32

    def time(self, flops: float, moved: float) -> float:
        """Of a convolution that moves so many bytes, those of its epilogue among them."""
        return self.overhead + max(self.products * flops / self.rate, moved / self.memory)

    def pass_time(self, moved: float, operations: float) -> float:
        """Of a kernel without products."""
        return self.kernel_overhead + max(moved / self.memory, operations / self.arithmetic)

    def library_time(self, flops: float, moved: float, channels: int, transposed: bool) -> float:
        """`channels` are those of a group, `transposed` a convolution in three dimensions."""
        few, many, deep = self.library
        rate = few + (many - few) * min(1.0, channels / self.library_channels)
        rate = min(rate, deep) if transposed else rate
        return self.overhead + max(flops / rate, moved / self.memory)


@dataclass(frozen=True)
class LibraryConvolutions:
    """What the library's convolutions gain from channels_last.

    Its tensor-core kernels work with the channels last: a tensor that comes otherwise is turned
    before, and the result after, at `turn_rate`. Depthwise ones have kernels of their own for
    either order, which move memory at `depthwise_rate` with the channels first, at
    `depthwise_last_rate` with them last. A kernel of ours that stores in the other order moves
    memory at `store_rate`. Any kernel more takes `overhead`, and a weight, which is turned in every
    call, `weight_overhead`.

    Where all are `alike`, on a CPU, products and groups are turned as any other, weights lie as
    they may, and float32 is float32 in either order. `ranks` are those of operands that gain.
    `pixels_as_products`: with the channels first, windows of one place are better a product of
    matrices, which is then as fast as the convolution in channels_last.

    A transposed convolution by steps may be turned at a rate of its own. What a kernel scatters,
    number by number, counts as so much more than what it moves.

    Where `minds_one`, a single sample takes longer than half of two, and a small one goes to a
    kernel that is many times slower.
    `in_double`: float64 is convolved about as fast as its bytes and operations say.
    With the channels last a weight takes longer to be brought into the library's own order, by its
    bytes at `weight_rate`.
    """

    turn_rate: float
    depthwise_rate: float
    depthwise_last_rate: float
    store_rate: float
    overhead: float
    weight_overhead: float
    alike: bool = False
    pixels_as_products: bool = False
    ranks: tuple[int, ...] = (4, 5)
    transposed_rate: float | None = None
    scattered: float = 1.0
    minds_one: bool = False
    in_double: bool = True
    weight_rate: float = math.inf

    def turning_time(self, moved: float, by_steps: bool = False) -> float:
        """What the library takes to turn operand and result, so many bytes together.

        The result is made `by_steps` in a transposed convolution whose stride is more than one.
        """
        rate = self.transposed_rate if by_steps and self.transposed_rate else self.turn_rate
        return 2 * self.overhead + 2 * moved / rate

    def depthwise_gain(self, moved: float) -> float:
        return moved / self.depthwise_rate - moved / self.depthwise_last_rate

    def store_time(self, moved: float) -> float:
        """A kernel that does nothing but turn so many bytes."""
        return self.overhead + 2 * moved / self.store_rate


@dataclass(frozen=True)
class Sums:
    """Sums over windows in ordinary kernels, and the library's grouped convolutions: their times.

    In microseconds: a kernel takes `launch` and the larger of two times, that of its bytes at
    `memory` and that of its `products`, to which a result adds `beside` for its loads and stores.
    The library's depthwise kernel makes two loads for each product, at `loads` from the nearest
    cache, `slower` times as slowly; the one for groups of several channels takes `tap` for each
    place of a window, however few they are. Windows have at most `largest` elements and lie in rows
    of at least `fewest`.
    """

    launch: float
    memory: float
    products: float
    beside: float
    loads: float
    slower: float
    tap: float
    largest: int
    fewest: int = 1

    def time(self, outputs: int, window: int, moved: int) -> float:
        work = outputs * (window + self.beside) / self.products
        return self.launch + max(moved / self.memory, work)

    def library_time(self, outputs: int, window: int, channels: int, moved: int) -> float:
        if channels == 1:
            return self.launch + max(moved / self.memory, outputs * 2 * window / self.loads) * (
                self.slower
            )
        return self.launch + max(moved / self.memory, outputs * window / channels * self.tap)


@dataclass(frozen=True)
class SmallConvolutions:
    """Convolutions on a CPU in a kernel of ours, and the library's small ones: their times.

    In microseconds: ours takes `launch`, its input at `memory` bytes and its operations at `rate`,
    which is that of a full tile of `filters`. The library takes `library` whatever it computes, or
    `alone` for a single sample that it does not prepare for, and its operations at `library_rate`.
    """

    launch: float
    memory: float
    rate: float
    filters: int
    library: float
    alone: float
    library_rate: float

    def time(self, flops: float, moved: float, filters: int) -> float:
        """`filters` are those of a group, `moved` the bytes of the input."""
        full = min(1.0, filters / self.filters)
        return self.launch + moved / self.memory + flops / (self.rate * full)

    def library_time(self, flops: float, prepared: bool) -> float:
        return (self.library if prepared else self.alone) + flops / self.library_rate


@dataclass(frozen=True)
class Attending:
    """A kernel for whole attentions of a dtype at a precision, and a model of its time.

    It is made of the instructions of one `capability`, its template is `kernel`; it makes so many
    `products` of tensor cores for one, `rate` of these operations in a microsecond, and moves
    `memory` bytes meanwhile; a launch takes `overhead`. A warp has `rows` queries, a block at most
    `warps`. Heads have at most `widest` features.
    """

    name: str
    text: str
    dtype: torch.dtype
    precision: str
    kernel: str
    capability: tuple[int, int]
    products: int
    rate: float
    memory: float
    overhead: float
    rows: int
    warps: int
    widest: int

    def time(self, flops: float, moved: float) -> float:
        """Of both products together, whole tiles counted."""
        return self.overhead + max(self.products * flops / self.rate, moved / self.memory)


@dataclass(frozen=True)
class CoreAttending:
    """A kernel for attentions of a dtype on a CPU, and the times of it and of its steps apart.

    In microseconds: ours takes `launch`, its products at `rate` operations and its scores, of which
    it weighs so many in one. Apart, each of three steps takes `step`, the products take `library`,
    and what is written and read of the scores `memory` bytes. Heads have at most `widest` features.
    """

    name: str
    text: str
    dtype: torch.dtype
    launch: float
    rate: float
    scores: float
    step: float
    library: float
    memory: float
    widest: int
    precision: str = ""

    def time(self, flops: float, scores: float) -> float:
        return self.launch + flops / self.rate + scores / self.scores

    def time_apart(self, flops: float, scores: float) -> float:
        moved = 4 * self.dtype.itemsize * scores
        passes = moved / self.memory + scores / self.scores
        return 3 * self.step + flops / self.library + passes


@dataclass(frozen=True)
class Target:
    """An architecture. `device` is torch's word for the kind of device that it is.

    A GPU has `lanes` over a row and, where it has tensor cores that there are kernels for, `loops`
    for products, `conv_loops` for convolutions and `attending` for attentions;
    a CPU keeps rows of up to `row_elements` in the cache of one core. Memory moves `launch_bytes`
    in the time that one more kernel takes to begin and end, and a byte in that of `flops_per_byte`.
    `convolutions` says what the library's convolutions gain from channels_last, if they may.
    Where convolutions of few channels a group may be `sums` over windows, these have their times.
    GPUs of the compute capabilities that begin with `majors` are such machines. `notice` is what a
    user must be told who compiles for this one.
    `host` says which products a CPU makes by kernels of ours. Where there is a kernel for `small`
    convolutions, that has its times.
    """

    name: str
    device: str
    launch_bytes: int
    flops_per_byte: int
    lanes: Lanes | None = None
    row_elements: int = 0
    loops: tuple[Loop, ...] = ()
    conv_loops: tuple[ConvLoop, ...] = ()
    attending: tuple[Attending | CoreAttending, ...] = ()
    convolutions: LibraryConvolutions | None = None
    sums: Sums | None = None
    majors: tuple[int, ...] = ()
    notice: str = ""
    host: HostWays | None = None
    small: SmallConvolutions | None = None

    def conv_loop_for(self, dtype: torch.dtype, owed: str) -> ConvLoop | None:
        """The main loop for convolutions of this type, of the accuracy that is owed to float32."""
        return next(
            (p for p in self.conv_loops if p.dtype == dtype and p.accuracy in ("", owed)), None
        )

    def attending_for(self, dtype: torch.dtype, precision: str) -> Attending | CoreAttending | None:
        """The kernel for attentions of this type at a float32 matmul precision."""
        return _at(precision, (k for k in self.attending if k.dtype == dtype))

    def loop_for(self, dtype: torch.dtype, precision: str) -> Loop | None:
        """The main loop for operands of this type at a float32 matmul precision."""
        return _at(precision, (p for p in self.loops if p.dtype == dtype))

    def __str__(self) -> str:
        return self.name


Precise = TypeVar("Precise", bound=Loop | Attending | CoreAttending)


def _at(precision: str, kernels: Iterable[Precise]) -> Precise | None:
    """The first that is for a float32 matmul precision, or for any."""
    setting = "highest" if precision == "highest" else "high"
    return next((k for k in kernels if k.precision in ("", setting)), None)
