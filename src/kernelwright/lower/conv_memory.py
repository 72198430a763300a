"""The shared memory of a generated convolution: stages, weights, and the input on its way."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

from kernelwright.lower.conv_choice import STAGED, Choice
from kernelwright.plan.convolutions import Extents
from kernelwright.targets.sm_90 import CONVOLVING

MOST_BOX = 256  # elements of a box along an axis
RAW_BYTES = 36 << 10  # of all boxes that are on their way
BOX_PLACES = 8 * 128  # of a box, so that a thread keeps in registers where they are
UNITS_AT_ONCE = 4  # that a feeding thread loads before it converts the first


@dataclass(eq=False)
class Halo:
    """What a block's tile sees of the input, whatever its stages and weights are."""

    sample: Choice
    used: Extents
    boxes: dict[int, Extents | None] = field(default_factory=dict)

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

    @property
    def box_channels(self) -> int:
        return min(8 // self.sample.given.pack, self.sample.given.group_in)

    def box(self, most: int) -> Extents | None:
        """The part of a chunk that the copy engine brings at once: at most so many bytes.

        None if rows do not allow that.
        """
        if most not in self.boxes:
            self.boxes[most] = self._box(most)
        return self.boxes[most]

    def _box(self, most: int) -> Extents | None:
        z, y, x = self.size
        last = self.sample.given.axes[2]
        windows = self.sample.given.windows
        across = self.sample.advance(self.used)[2] * self.sample.times[2]
        one_tile = across * last.spread >= windows.count[2] * windows.step[2]
        first = last.first - windows.before[2] * last.step
        # A box begins at a multiple of 16 bytes.
        lead = first % 4 if one_tile or across * last.step % 4 == 0 else 3
        wide = -(-(lead + x + (last.pack - 1) * last.dilation) // 4) * 4
        if not self.sample.given.loop.scaled or last.size % 4 or max(wide, z, y) > MOST_BOX:
            return None
        rows = min(most // (self.box_channels * wide * 4), BOX_PLACES // x)
        tall = max((n for n in range(1, y + 1) if y % n == 0 and n <= rows), default=1)
        deep = max(n for n in range(1, z + 1) if z % n == 0 and (n == 1 or n * y <= rows))
        return deep, tall, wide


@dataclass(eq=False)
class Memory:
    """Shared memory of a block in bytes, as ConvMemory of kernels/conv_memory.cuh has it."""

    choice: Choice
    seen: Halo
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
    def effort(self) -> int:
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
            return (2 if self.units > 128 else 1) * 4096 if self.choice.given.loop.scaled else 0
        return -(-self.seen.box_channels * math.prod(self.box) * 4 // 128) * 128

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
        places = math.prod(self.halo) * 8 if self.box is None else 0
        lists = (sum(c.depth_steps) + c.given.phases + 1) * 4 + 8 + places
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
