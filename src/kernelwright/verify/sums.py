"""Squares and maxima of errors, over an output and over its slices, in few passes over memory.

In: candidate, eager and float64 of one shape. Out: Sums. The one idea: blocks that fit a cache go
through all of the arithmetic before the next ones come, parted among a few threads of Python; each
of torch's operators runs in one thread.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

MOST = 1 << 18  # slices of one kind
BLOCK = 1 << 17  # elements that are looked at together: few enough for a cache
ON_DEVICE = 1 << 22  # the same on a GPU, where it is launches that cost
INNER = 1 << 14  # of a row, so that a block has several: its sums in both directions are small then
WORKERS = 4
EACH = 4  # blocks for which a thread is worth its start

Place = tuple[slice, ...]
Dims = tuple[int, ...]


def blocks(shape: Sequence[int], most: int = BLOCK) -> Iterator[Place]:
    """Parts of a tensor that are not too large to look at together, as slices."""
    yield from _parts(tuple(shape), (), most)


def _parts(shape: tuple[int, ...], place: Place, most: int) -> Iterator[Place]:
    depth = len(place)
    inner = math.prod(shape[depth + 1 :])
    if depth == len(shape):
        yield place
        return
    step = shape[depth] if inner * shape[depth] <= most else max(1, most // max(inner, 1))
    for start in range(0, shape[depth], max(step, 1)):
        here = (*place, slice(start, min(start + step, shape[depth])))
        if inner <= most:
            yield (*here, *(slice(0, size) for size in shape[depth + 1 :]))
        else:
            yield from _parts(shape, here, most)


def tiles(shape: Sequence[int], most: int = BLOCK) -> Iterator[Place]:
    """Blocks of several rows each; a row is all dimensions but the first two."""
    split = _split(shape)
    inner = max(INNER, most // max(math.prod(shape[:split]), 1))
    backs = list(blocks(shape[split:], inner))
    widest = max((math.prod(x.stop - x.start for x in back) for back in backs), default=1)
    for front in blocks(shape[:split], max(1, most // max(widest, 1))):
        for back in backs:
            yield (*front, *back)


def _split(shape: Sequence[int]) -> int:
    return 2 if len(shape) > 2 else min(1, len(shape))


def _kinds(shape: Sequence[int]) -> list[Dims]:
    """Along which dimensions there are slices to look at."""
    pairs = [(0, 1)] if len(shape) > 2 and min(shape[:2]) > 1 else []
    kinds: list[Dims] = [*((dim,) for dim in range(len(shape))), *pairs]
    return [dims for dims in kinds if 1 < _number(shape, dims) <= MOST] if math.prod(shape) else []


def _number(shape: Sequence[int], dims: Dims) -> int:
    return math.prod(shape[dim] for dim in dims)


def summed(three: Sequence[Tensor], by_group: bool) -> Sums:
    """The sums of candidate, eager and reference; of slices too, if `by_group`."""
    ours, shape = three[0], tuple(three[0].shape)
    if ours.device.type != "cpu":
        return Sums(ours, by_group).add_all(three, tiles(shape, ON_DEVICE))
    places = list(tiles(shape))
    workers = max(1, min(WORKERS, torch.get_num_threads(), len(places) // EACH))
    bounds = [i * len(places) // workers for i in range(workers + 1)]

    def part(i: int) -> Sums:
        return Sums(ours, by_group).add_all(three, places[bounds[i] : bounds[i + 1]])

    with one_thread():
        if workers == 1:
            return part(0)
        with ThreadPoolExecutor(workers) as pool:
            first, *others = pool.map(part, range(workers))
    for other in others:
        first.join(other)
    return first


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch's operators in one thread each.

    On a block they take microseconds. Parted by OpenMP, all threads of the machine meet after each
    of them, and spin while they wait for the last one. If a core is busy with something else, such
    as another verification, every one of some ten thousand meetings costs a slice of its time.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass
class Slices:
    """The figures of all slices along some dimensions, of candidate, eager and reference."""

    dims: Dims
    counts: Tensor
    squares: Tensor
    maxima: Tensor

    def add(self, at: Place, counts: Tensor | int, squares: Tensor, maxima: Tensor) -> None:
        self.counts[at].add_(counts)
        self.squares[:, *at].add_(squares)
        here = self.maxima[:, *at]
        torch.maximum(here, maxima, out=here)

    def along(self, dims: Dims) -> Slices:
        """Those along fewer dimensions."""
        others = [i for i, dim in enumerate(self.dims) if dim not in dims]
        if not others:
            return self
        behind = [i + 1 for i in others]
        sums = self.counts.sum(others), self.squares.sum(behind), self.maxima.amax(behind)
        return Slices(dims, *sums)


class Sums:
    """Sums in the making, of an output as a whole and, if `by_group`, of its slices.

    A block is summed up over its first two dimensions and over all others. What is kept is one
    number for each place in these, if they are not too many: slices along one dimension alone
    follow in the end. Maxima are those of squares, whose roots are exact, so that there is one
    array to go through; but not in float64, where squares of small numbers are 0.
    """

    def __init__(self, ours: Tensor, by_group: bool) -> None:
        self.shape, self.device = tuple(ours.shape), ours.device
        self.split, self.wide = _split(self.shape), ours.dtype == torch.float64
        self.total = self._slices(())
        self.kinds = _kinds(self.shape) if by_group else []
        self.kept: list[Slices] = []
        for half in (range(self.split), range(self.split, len(self.shape))):
            inside = [dims for dims in self.kinds if dims[0] in half]
            few = inside and _number(self.shape, tuple(half)) <= MOST
            self.kept += map(self._slices, [tuple(half)] if few else inside)
        self.has_back = any(x.dims[0] >= self.split for x in self.kept)
        self._memory = torch.empty(0, dtype=torch.float64, device=self.device)

    def _slices(self, dims: Dims) -> Slices:
        sizes = [self.shape[dim] for dim in dims]
        shapes = sizes, [3, *sizes], [3, *sizes]
        zeros = (torch.zeros(x, dtype=torch.float64, device=self.device) for x in shapes)
        return Slices(dims, *zeros)

    @property
    def count(self) -> int:
        return int(self.total.counts)

    def slices(self) -> Iterator[Slices]:
        """Of each kind, with the maxima of what was squared."""
        for dims in self.kinds:
            found = next(x for x in self.kept if set(dims) <= set(x.dims)).along(dims)
            yield replace(found, maxima=self.rooted(found.maxima))

    def rooted(self, maxima: Tensor) -> Tensor:
        return maxima if self.wide else maxima.sqrt()

    def add_all(self, three: Sequence[Tensor], places: Iterable[Place]) -> Sums:
        for place in places:
            parts = [x[place] for x in three]
            if parts[0].numel():
                self._add(place, parts)
        return self

    def _add(self, place: Place, parts: Sequence[Tensor]) -> None:
        """One block; what is not finite in all three does not count."""
        halves, counts = self._halves(parts), None
        if not math.isfinite(float(halves[0][0].sum())):
            kept = parts[0].isfinite() & parts[1].isfinite() & parts[2].isfinite()
            halves = self._halves([x.where(kept, 0.0) for x in parts])
            counts = kept.double()
            if not bool(kept.any()):
                return
        shape, (squares, maxima) = parts[0].shape, halves[0]
        count = parts[0].numel() if counts is None else int(counts.sum())
        self.total.add((), count, squares.sum(1), maxima.amax(1))
        for into in self.kept:
            first = 0 if into.dims[0] < self.split else self.split
            dims = range(first, len(shape) if first else self.split)
            here = [x.view(3, *(shape[d] for d in dims)) for x in halves[min(first, 1)]]
            others = [d - first + 1 for d in dims if d not in into.dims]
            if others:
                here = [here[0].sum(others), here[1].amax(others)]
            number: Tensor | int = count // math.prod(here[0].shape[1:])
            if counts is not None:
                outside = [d for d in range(len(shape)) if d not in into.dims]
                number = counts.sum(outside) if outside else counts
            into.add(tuple(place[d] for d in into.dims), number, *here)

    def _halves(self, parts: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Squares and maxima of a block, over all but its first dimensions, and over these."""
        ours, theirs, exact = parts[0], parts[1], parts[2].double()
        size, rows = ours.numel(), math.prod(ours.shape[: self.split])
        if self._memory.numel() < 3 * size:
            self._memory = self._memory.new_empty(3 * size)
        values = self._memory[: 3 * size].view(3, *ours.shape)
        errors = values[:2]
        errors[0].copy_(ours)
        errors[1].copy_(theirs)
        errors.sub_(exact)
        squares = largest = values.view(3, rows, -1)
        if self.wide:
            values[2].copy_(exact)
            largest = squares.abs()
            values.mul_(values)
        else:
            errors.mul_(errors)
            torch.mul(exact, exact, out=values[2])
        halves = [(squares.sum(2), largest.amax(2))]
        return [*halves, (squares.sum(1), largest.amax(1))] if self.has_back else halves

    def join(self, other: Sums) -> None:
        """What was found in other blocks."""
        for mine, more in zip([self.total, *self.kept], [other.total, *other.kept], strict=True):
            mine.add((), more.counts, more.squares, more.maxima)
