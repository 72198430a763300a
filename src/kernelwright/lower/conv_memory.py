"""The shared memory of a generated convolution: stages, weights, and the input on its way."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

from kernelwright.lower.conv_choice import STAGED, Choice
from kernelwright.plan.convolutions import Extents

MOST_BOX = 256  # elements of a box along an axis
RAW_BYTES = 36 << 10  # of all boxes that are on their way
BOX_PLACES = 8 * 128  # of a box, so that a thread keeps in registers where they are
UNITS_AT_ONCE = 4  # that a feeding thread loads before it converts the first


@dataclass(frozen=True)
class Boxes:
    """The boxes in which the copy engine brings a chunk of the halo."""

    size: Extents
    count: int
    channels: int
    units: int  # of a box, those that a feeding thread converts

    @cached_property
    def bytes(self) -> int:
        """Of a box."""
        return -(-self.channels * math.prod(self.size) * 4 // 128) * 128

    @property
    def rows(self) -> int:
        """Of all boxes."""
        deep, tall, _ = self.size
        return self.count * deep * tall * self.channels

    @cached_property
    def effort(self) -> int:
        """What they cost a feeding thread, in units that it converts.

        To wait for a box is one, and so is to wait for units that it loads at once.
        """
        return self.count * (1 + -(-self.units // UNITS_AT_ONCE) + self.units)


@dataclass(eq=False)
class Halo:
    """What a block's tile sees of the input, whatever its stages and weights are."""

    sample: Choice
    used: Extents
    known: dict[int, Boxes | None] = field(default_factory=dict)

    @cached_property
    def size(self) -> Extents:
        advance = self.sample.advance(self.used)
        z, y, x = (
            (further * (t - 1) + n - 1) * a.step + a.reach + 1
            for n, further, t, a in zip(
                self.used, advance, self.sample.times, self.sample.given.axes, strict=True
            )
        )
        return z, y, x

    @cached_property
    def handed(self) -> Extents:
        """Results or windows that a warpgroup hands over."""
        return self.sample.handed(self.used)

    def boxes(self, most: int) -> Boxes | None:
        """Those of at most so many bytes; None if rows do not allow boxes."""
        if most not in self.known:
            self.known[most] = self._boxes(most)
        return self.known[most]

    def _boxes(self, most: int) -> Boxes | None:
        z, y, x = self.size
        given, last = self.sample.given, self.sample.given.axes[2]
        windows = given.windows
        across = self.sample.advance(self.used)[2] * self.sample.times[2]
        one_tile = across * last.spread >= windows.count[2] * windows.step[2]
        first = last.first - windows.before[2] * last.step
        # A box begins at a multiple of 16 bytes.
        lead = first % 4 if one_tile or across * last.step % 4 == 0 else 3
        wide = -(-(lead + x + (last.pack - 1) * last.dilation) // 4) * 4
        if not given.loop.scaled or last.size % 4 or max(wide, z, y) > MOST_BOX:
            return None
        channels = min(8 // given.pack, given.group_in)
        rows = min(most // (channels * wide * 4), BOX_PLACES // x)
        deep, tall = _evenly(z, rows // y), _evenly(y, rows)
        count = -(-z // deep) * -(-y // tall)
        return Boxes((deep, tall, wide), count, channels, -(-deep * tall * x // 128))


def _evenly(along: int, most: int) -> int:
    """How long each is of the fewest parts of at most so many.

    The last one ends where all do, and has some of the one before it if need be.
    """
    return -(-along // -(-along // max(most, 1)))


@dataclass(eq=False)
class Memory:
    """Shared memory of a block in bytes, as ConvMemory of kernels/conv_memory.cuh has it."""

    choice: Choice
    seen: Halo
    boxes: Boxes | None

    @property
    def halo(self) -> Extents:
        return self.seen.size

    @property
    def units(self) -> int:
        return self.choice.chunks * math.prod(self.halo)

    @property
    def rounds(self) -> int:
        """Units of a stage that a feeding thread converts."""
        if self.boxes is None:
            return -(-self.units // 128)
        return self.choice.chunks * self.boxes.count * self.boxes.units

    @cached_property
    def piece(self) -> int:
        """Bytes of a box, or of what all feeding threads copy in a round."""
        if self.boxes is None:
            return (2 if self.units > 128 else 1) * 4096 if self.choice.given.loop.scaled else 0
        return self.boxes.bytes

    @cached_property
    def stage(self) -> int:
        z, y, x = self.halo
        step = self.choice.given.axes[2].step
        pitch = -(-x // step) * step
        return self.choice.given.loop.planes * self.choice.chunks * z * y * pitch * 16

    @cached_property
    def weights(self) -> int:
        """Of one stage, all phases."""
        c = self.choice
        return c.given.loop.planes * 2 * sum(c.depth_steps) * c.block_channels * 16

    @cached_property
    def ring(self) -> int:
        c = self.choice
        if c.weights != STAGED:
            return 0
        steps = max(c.depth_steps) if c.visits > 1 else sum(c.depth_steps)
        return c.given.loop.planes * 2 * steps * c.block_channels * 16

    @cached_property
    def fixed(self) -> int:
        c = self.choice
        kept = (c.stages_of_tile if c.resident else c.weight_ring) * self.weights
        places = math.prod(self.halo) * 8 if self.boxes is None else 0
        lists = (sum(c.depth_steps) + c.given.phases + 1) * 4 + 8 + places
        scales = c.channel_tiles * c.block_channels * 8
        return kept + lists + scales

    def total(self, slices: int, stages: int, ahead: int) -> int:
        ring = -(-stages * (self.stage + self.ring) // 128) * 128
        return self.fixed + slices + ring + 128 + ahead * self.piece

    def fits(self, slices: int, stages: int, ahead: int) -> bool:
        return self.total(slices, stages, ahead) <= self.choice.given.loop.tiles.shared_bytes

    def rings(self, slices: int) -> tuple[int, int]:
        """Stages, and pieces of the input that are on their way; no stages if nothing fits."""
        if not self.fits(slices, 2, 2):
            return 0, 0
        enough = 4 if self.boxes is None else max(2, min(8, RAW_BYTES // self.piece))
        for stages in (4, 3):
            if self.fits(slices, stages, enough):
                return stages, enough
        return 2, next(n for n in range(enough, 1, -1) if self.fits(slices, 2, n))
