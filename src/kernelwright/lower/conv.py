"""How the tiles of a generated convolution are chosen: its form in, ranked configurations out.

A configuration is everything that kernels/conv_shape.cuh wants to know. All tiles that the tensor
cores can multiply are tried: weights as rows of the products or places as rows, blocks of places
along any axis, the two warpgroups side by side along any axis or on different channels, some or all
channels in a stage, weights resident or coming with every stage (conv_choice.py). What does not fit
the shared memory says why (conv_memory.py); the rest is ranked by a model of what a tile takes
(conv_shape.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product as every

import torch

from kernelwright.lower.conv_choice import (
    ONES,
    OWN,
    RESIDENT,
    WEIGHTS,
    Choice,
    Given,
    Needs,
    Slices,
)
from kernelwright.lower.conv_memory import Halo, Memory
from kernelwright.lower.conv_shape import SECTOR, ConvConfig, Shape, Timed, with_time
from kernelwright.plan.convolutions import ConvForm, Extents
from kernelwright.plan.model import Buffer
from kernelwright.plan.tiles import Box
from kernelwright.plan.walks import side_by_side
from kernelwright.targets.target import ConvLoop

# Columns of one product; the others are not worth their instructions.
WIDTHS = (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128)
ROWS = (16, 14, 12, 10, 8, 7, 6, 5, 4)
BLOCKS = (
    *((1, 1, 1), (1, 1, 2), (1, 2, 1), (2, 1, 1), (1, 1, 4), (1, 2, 2)),
    *((2, 1, 2), (4, 1, 1), (2, 2, 1), (1, 4, 1), (3, 1, 1), (1, 1, 3), (1, 1, 5), (1, 3, 1)),
)
SPLITS = ("C", "X", "Y", "Z")
MOST_REDUCED = 128  # accumulators, where they are reduced in registers
SLICE_BYTES = 72 << 10
SMALL_BYTES = 36 << 10  # of all slices of sixteen channels; larger ones are no faster than two
PHASES_BYTES = 140 << 10  # where all phases meet in one slice
BOX_BYTES = 12 << 10  # of a box, so that several are on their way


@lru_cache(maxsize=256)
def tiles(form: ConvForm, loop: ConvLoop, needs: Needs) -> tuple[ConvConfig, ...]:
    """Of each box that an epilogue may be given the fastest configuration, the fastest first.

    A network has the same convolution many times, and is planned several times.
    """
    found: dict[Box, Timed] = {}
    for timed in _timed(form, loop, needs):
        found.setdefault(timed.shape.slices.box, timed)
    return tuple(timed.config for timed in found.values())


def ranked(form: ConvForm, loop: ConvLoop, needs: Needs) -> list[ConvConfig]:
    """All configurations, the fastest first."""
    return [timed.config for timed in _timed(form, loop, needs)]


def _timed(form: ConvForm, loop: ConvLoop, needs: Needs) -> list[Timed]:
    """All that fit, the fastest first for a typical batch.

    Of equals the widest is first: on an H200 tiles of 8 x 16 places take up to 7% less than those
    of 16 x 8, and never more. Then comes the one with fewer slices.
    """
    found = [with_time(shape, needs) for shape in _shapes(form, loop, needs.together)]

    def order(timed: Timed) -> tuple[float, ...]:
        time, slices = timed.launch.time(TYPICAL_BATCH), timed.shape.slices
        return time, -slices.width, -slices.channels, timed.shape.shared_bytes

    return sorted(found, key=order)


TYPICAL_BATCH = 64


@dataclass(eq=False)
class Candidate:
    """A choice, and how it lies in memory, or why it does not."""

    choice: Choice
    shape: Shape | None
    refused: str = ""


@lru_cache(maxsize=8)
def _shapes(form: ConvForm, loop: ConvLoop, needs: Needs) -> tuple[Shape, ...]:
    """All that fit; what different epilogues make of one convolution is asked in a row."""
    return tuple(c.shape for c in candidates(form, loop, needs) if c.shape is not None)


def candidates(form: ConvForm, loop: ConvLoop, needs: Needs) -> Iterator[Candidate]:
    """Every choice with its shape or the reason why it has none."""
    for sample in _samples(form, loop, needs):
        kept = [Halo(sample, sample.used(multiple)) for multiple in _multiples(needs)]
        places = [(halo, list(_slices(halo, needs))) for halo in kept]
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
            memory = Memory(choice, halo, halo.boxes(BOX_BYTES))
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


def _samples(form: ConvForm, loop: ConvLoop, needs: Needs) -> Iterator[Choice]:
    """One for each way to lay out places and channels; they differ in nothing else."""
    pool = needs.pool or side_by_side(ONES, form.out_size)
    for merge in _merges(form):
        given = Given(form, loop, merge, pool)
        for pixels, rows, channels in _products(form, merge, needs):
            for blocks, split, along in every(BLOCKS, SPLITS, (False, True)):
                sample = Choice(
                    *(given, pixels, rows, blocks, channels, split),
                    chunks=1,
                    weights=RESIDENT,
                    along=along,
                )
                if _sensible(sample, needs):
                    yield sample


def _variants(sample: Choice) -> Iterator[Choice]:
    """The same with all stages, and all places for the weights."""
    for chunks, weights in every(_stages(sample.given.all_chunks), WEIGHTS):
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
        choice.given.group_out <= choice.channels or needs.channels_together > choice.channels
    ):
        return False
    _, y, x = choice.given.axes
    if choice.along and y.out > 1 and x.places <= 4 * choice.rows:
        return False
    if choice.blocks == (1, 1, 1) and choice.split == "Y" and not choice.along:
        return True  # the smallest tile, for outputs that are smaller still
    least = (1, 1 if choice.along else choice.rows, 8 * choice.rows if choice.along else 8)
    return all(
        many <= few or many < 2 * axis.places
        for many, few, axis in zip(choice.block, least, choice.given.axes, strict=True)
    )


def _stages(chunks: int) -> list[int]:
    return sorted({n for n in (1, 2, 3, 4, 6, 8, chunks) if n <= chunks and n <= 16})


def _shaped(large: Memory, slices: Slices) -> Candidate:
    choice, memory = large.choice, large
    stages, ahead = large.rings(slices.bytes)
    if stages < 2 and large.boxes is not None:
        memory = replace(large, boxes=large.seen.boxes(BOX_BYTES // 2))
        stages, ahead = memory.rings(slices.bytes)
    if stages < 2:
        needed = large.fixed + slices.bytes
        return Candidate(choice, None, f"{needed >> 10} KB and no two stages")
    sixteen = slices.threads == 32 and slices.channels == 16
    if sixteen and memory.rings(slices.bytes // 2) != (stages, ahead):
        return Candidate(choice, None, "slices of eight channels leave room for another stage")
    return Candidate(choice, Shape(slices, memory, stages, ahead).fed)


def _slices(halo: Halo, needs: Needs) -> Iterator[Slices]:
    """What an epilogue may be given: the largest slice that fits, and of phases each that does."""
    choice, given, used = halo.sample, halo.sample.given, halo.used
    depth, height, width = halo.handed
    warps = not choice.pixels and needs.channels_together in (1, 2, 4, 8) and given.phases == 1
    if warps and not needs.early:  # half as many slices, if they are small
        pitch = _pitch(depth * height * width, False)
        whole = given.groups == 1 or given.group_out % 16 == 0
        if whole and 16 * pitch * 4 * 8 <= SMALL_BYTES:
            yield Slices(32, 16, depth, height, width, pitch)
    threads, channels = (32, 8) if warps else (128, choice.channels)
    if given.groups > 1 and given.group_out % channels:
        return
    multiple = needs.multiple
    heights = [h for h in range(height, 0, -1) if height % h == 0 and h % multiple[1] == 0]
    depths = [d for d in range(depth, 0, -1) if depth % d == 0 and d % multiple[0] == 0]
    if given.phases == 1:
        boxes = list(every(depths[-1:], heights))
    else:  # all in one slice, or one for each depth, or one for each depth and row
        alone = [used[i] == 1 and multiple[i] == 1 for i in (0, 1)]
        boxes = [(depth, height)] if depth in depths and height in heights else []
        boxes += [(1, height)] if alone[0] and depth > 1 and height in heights else []
        boxes += [(1, 1)] if alone[1] and height > 1 and (alone[0] or depth == 1) else []
    most = SLICE_BYTES if given.phases == 1 else PHASES_BYTES
    for d, h in boxes:
        pitch = _pitch(d * h * width, choice.pixels)
        if channels * pitch * 4 * (256 // threads) <= most:
            yield Slices(threads, channels, d, h, width, pitch)
            if given.phases == 1:
                return


def _pitch(places: int, pixels: bool) -> int:
    """The next number that spreads the stores of a warp over all banks."""
    modulus, rest = (16, 4) if pixels else (32, 8)
    return places + (rest - places) % modulus


def room(config: ConvConfig) -> tuple[Buffer, ...]:
    """Memory that a launch needs: the packed weights and their scales."""
    return (
        Buffer("packed_weight", (config.packed_bytes,), torch.uint8),
        Buffer("weight_scales", (config.scale_bytes,), torch.uint8),
    )
