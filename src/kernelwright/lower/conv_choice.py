"""What a tile of a generated convolution may be, and what follows from that alone.

Objects of these classes are made by the thousand, for every convolution of a network. They are not
frozen, because that would double the time, and nobody changes them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import product as every
from typing import NamedTuple

from kernelwright.plan.convolutions import ConvForm, Extents
from kernelwright.plan.tiles import Box
from kernelwright.plan.walks import Pool, side_by_side
from kernelwright.targets.target import ConvLoop

ONES: Extents = (1, 1, 1)
# Depth steps between two promotions, and so many that need none of a thread's sums.
PROMOTE = 5
NO_PROMOTION = 6
# Where the weights of a stage are: in shared memory for the whole launch, with the stage, or in a
# ring of the warpgroup that multiplies them.
WEIGHTS = RESIDENT, STAGED, OWN = "resident", "with every stage", "of each warpgroup"
WEIGHT_RING = 2
MOST_ACCUMULATORS = 144
MOST_OFFSET = 1 << 29  # elements between those of a stage, whose bytes are counted in 31 bits
MOST_OVERLAPPING = 9  # columns of windows that overlap: those of an eight reach into the next one


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


@dataclass(eq=False)
class Given:
    """What is not free to choose: the convolution, how many of its groups are multiplied as one.

    `pool`: the windows whose largest result is wanted, or each result alone.
    """

    form: ConvForm
    loop: ConvLoop
    merge: int
    pool: Pool

    @cached_property
    def groups(self) -> int:
        return self.form.groups // self.merge

    @cached_property
    def group_in(self) -> int:
        return self.form.cin // self.groups

    @cached_property
    def group_out(self) -> int:
        return self.form.cout // self.groups

    @cached_property
    def pack(self) -> int:
        """Neighbouring taps of a row of the window that share a chunk."""
        if self.form.transposed or self.group_in > 4:
            return 1
        channels = 1 << (self.group_in - 1).bit_length()
        return min(8 // channels, 1 << (self.form.kernel[2] - 1).bit_length())

    @cached_property
    def all_chunks(self) -> int:
        return -(-self.group_in * self.pack // 8) if self.pack > 1 else -(-self.group_in // 8)

    @cached_property
    def of_phases(self) -> bool:
        """Whether the largest result is that of the phases of each place."""
        return self.pool.window != ONES and self.form.transposed and max(self.form.stride) > 1

    @cached_property
    def windows(self) -> Pool:
        """Or else that of windows of places."""
        return side_by_side(ONES, self.pool.count) if self.of_phases else self.pool

    @cached_property
    def axes(self) -> tuple[Axis, Axis, Axis]:
        f = self.form
        numbers = (f.in_size, f.out_size, f.kernel, f.stride, f.padding, f.dilation)

        def axis(at: int) -> Axis:
            size, out, kernel, stride, pad, dilation = (n[at] for n in numbers)
            ways = self.pack if at == 2 else 1, f.transposed, self.of_phases
            return Axis(size, out, kernel, stride, pad, dilation, *ways)

        return axis(0), axis(1), axis(2)

    @cached_property
    def chunks_of_phases(self) -> list[int]:
        """Chunks of eight channels that each phase multiplies: one for each tap that it meets."""
        z, y, x = self.axes
        phases = every(range(z.phases), range(y.phases), range(x.phases))
        return [z.taps(a) * y.taps(b) * x.taps(c) for a, b, c in phases]

    @cached_property
    def phases(self) -> int:
        return math.prod(axis.phases for axis in self.axes)

    @cached_property
    def spread(self) -> int:
        return math.prod(axis.spread for axis in self.axes)


@dataclass(eq=False)
class Choice:
    """What is free to choose. `blocks` and `split` are along depth, height and width."""

    given: Given
    pixels: bool
    rows: int
    blocks: Extents
    channels: int
    split: str
    chunks: int
    weights: str
    along: bool

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

    @property
    def stages_of_tile(self) -> int:
        return -(-self.given.all_chunks // self.chunks)

    @property
    def visits(self) -> int:
        """How often a tile goes through its stages: once, or for every phase."""
        return self.given.phases if self.stages_of_tile > 1 else 1

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
        windows = self.given.windows
        for many, axis, times in zip(self.computed, self.given.axes, self.times, strict=True):
            at = len(found)
            step, over = windows.step[at], windows.overlap[at]
            results = multiple[at] * step
            whole = results // math.gcd(results, axis.spread)
            wanted = -(-windows.count[at] * step // (times * whole * axis.spread)) * whole
            found.append(min((many - over) // whole * whole, wanted) + over)
        return found[0], found[1], found[2]

    def advance(self, used: Extents) -> Extents:
        """Places after which the next tile begins, which sees again what windows share."""
        z, y, x = (n - over for n, over in zip(used, self.given.windows.overlap, strict=True))
        return z, y, x

    def handed(self, used: Extents) -> Extents:
        """Results or windows of a warpgroup's tile along each axis."""
        advance = zip(self.advance(used), self.given.axes, self.given.windows.step, strict=True)
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
        return self.given.groups * -(-self.given.group_out // self.block_channels)

    @cached_property
    def depth_steps(self) -> list[int]:
        """Of each phase in one stage."""
        return [-(-chunks * self.chunks // 2) for chunks in self.given.chunks_of_phases]

    @property
    def promotes(self) -> bool:
        steps = max(self.depth_steps) * self.stages_of_tile
        return self.given.loop.planes == 2 and steps > NO_PROMOTION

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
        several = self.stages_of_tile > 1 and self.given.phases == 1
        return several and self.split == "C" and not self.promotes

    def refused(self, used: Extents) -> str:
        """Why the tensor cores or the kernel cannot do this."""
        if min(self.advance(used)) < 1:
            return "a window of the epilogue does not fit the tile"
        if self.accumulators > MOST_ACCUMULATORS:
            return "too many accumulators"
        if self.resident and self.channel_tiles > self.given.loop.tiles.processors // 2:
            return "more tiles of channels than blocks that could keep them"
        if self.given.pack > 1 and self.chunks > 1:
            return "one chunk has all channels"
        if 8 * self.chunks * math.prod(self.given.form.in_size) >= MOST_OFFSET:
            return "places of a stage are too far apart"
        if self.given.windows.window != ONES and (self.pixels or not self.has_columns(used[2])):
            return "a warp does not have whole windows"
        return ""

    def has_columns(self, wide: int) -> bool:
        """Whether four threads, of which each has two columns of eight, have those of a window."""
        window, step = self.given.windows.window[2], self.given.windows.step[2]
        inside = window <= MOST_OVERLAPPING if window > step else wide % 8 == 0
        return 8 % step == 0 and inside
