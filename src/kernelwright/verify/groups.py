"""Errors by group: one slice of an output along a dimension, or along its first two.

In: the errors of a candidate and of eager against float64, block by block. Out: Groups, which pool
over several draws. The one idea: a small row or channel may be wrong altogether and leave no trace
in the figures of the whole, so each slice is held to eager's error in slices of about its own size.
One slice alone would be held to eager's luck there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import functional

MOST = 1 << 18  # slices of one kind
NEIGHBOURS = 16  # slices of about the same size; fewer where there are few in all
ALIKE = 8.0  # times as large as it, at most, is one of about a slice's size
BLOCK = 1 << 18  # elements that are looked at together: few enough for a cache

Place = tuple[slice, ...]
Allowed = Callable[[Tensor, Tensor], Tensor]  # of eager's error and the reference's size


@dataclass(frozen=True)
class Worst:
    """The slice that is furthest over, or nearest to, what is allowed, by dimension and place."""

    name: str
    places: tuple[tuple[int, int], ...]
    error: float
    eager: float
    allowed: float


@dataclass(frozen=True)
class Groups:
    """The slices along some dimensions: one number each of every figure.

    Of several draws the candidate's error is the root mean square, and eager's, which is the
    measure, the largest.
    """

    dims: tuple[int, ...]
    shape: tuple[int, ...]
    count: Tensor
    candidate_squares: Tensor
    eager_rms: Tensor
    reference_squares: Tensor
    candidate_max: Tensor
    eager_max: Tensor
    reference_max: Tensor

    def __add__(self, other: Groups) -> Groups:
        return Groups(
            self.dims,
            self.shape,
            self.count + other.count,
            self.candidate_squares + other.candidate_squares,
            torch.maximum(self.eager_rms, other.eager_rms),
            self.reference_squares + other.reference_squares,
            torch.maximum(self.candidate_max, other.candidate_max),
            torch.maximum(self.eager_max, other.eager_max),
            torch.maximum(self.reference_max, other.reference_max),
        )

    def with_eager(self, samples: Sequence[Groups], luck: float) -> Groups:
        """The same, with eager's error from several runs, times `luck`."""
        return replace(
            self,
            eager_rms=torch.stack([x.eager_rms for x in samples]).amax(0) * luck,
            eager_max=torch.stack([x.eager_max for x in samples]).amax(0) * luck,
        )

    def worst(self, allowed: Allowed) -> Worst:
        counted = self.count.clamp(min=1)
        size = (self.reference_squares / counted).sqrt()
        rms = (self.candidate_squares / counted).sqrt(), self.eager_rms, size
        maximum = self.candidate_max, self.eager_max, self.reference_max
        found = [
            self._worst(name, allowed, *figures)
            for name, figures in (("rms", rms), ("max", maximum))
        ]
        return max(found, key=lambda worst: worst.error / worst.allowed)

    def _worst(
        self, name: str, allowed: Allowed, error: Tensor, eager: Tensor, size: Tensor
    ) -> Worst:
        order, nearby = size.argsort(), torch.empty_like(eager)
        nearby[order] = _largest_nearby(eager[order], size[order])
        bound = allowed(nearby, size)
        index = int((error / bound).argmax())
        figures = (float(x[index]) for x in (error, eager, bound))
        places = (index,) if len(self.dims) == 1 else divmod(index, self.shape[1])
        return Worst(name, tuple(zip(self.dims, places, strict=True)), *figures)


def _largest_nearby(values: Tensor, sizes: Tensor) -> Tensor:
    """The largest of each value and of its neighbours, in the order of their slices' sizes.

    Of a slice that is far larger, what its value would be if it were not.
    """
    each_side = min(NEIGHBOURS, len(values) // 4) // 2
    if not each_side:
        return values
    nearby, size = (
        functional.pad(x, (each_side, each_side)).unfold(0, 2 * each_side + 1, 1)
        for x in (values, sizes)
    )
    share = (ALIKE * sizes[:, None] / size).nan_to_num(0.0, posinf=1.0).clamp(max=1.0)
    return torch.maximum(values, (nearby * share).amax(1))


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


@dataclass
class Sums:
    """Groups in the making: squares and maxima of candidate, eager and reference by slice."""

    shape: tuple[int, ...]
    kinds: list[tuple[int, ...]] = field(init=False)
    counts: list[Tensor] = field(init=False)
    squares: list[Tensor] = field(init=False)
    maxima: list[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        pairs = [(0, 1)] if len(self.shape) > 2 and min(self.shape[:2]) > 1 else []
        kinds = [*((dim,) for dim in range(len(self.shape))), *pairs]
        self.kinds = [dims for dims in kinds if 1 < self._slices(dims) <= MOST]
        sizes = [self._sizes(dims) for dims in self.kinds]
        self.counts = [torch.zeros(size, dtype=torch.float64) for size in sizes]
        self.squares = [torch.zeros(3, *size, dtype=torch.float64) for size in sizes]
        self.maxima = [torch.zeros(3, *size, dtype=torch.float64) for size in sizes]

    def add(self, place: Place, values: Sequence[Halves], kept: Tensor | None) -> None:
        """The errors of candidate and eager, and the reference, in one block; 0 if not `kept`."""
        if not self.kinds:
            return
        counts = None if kept is None else Halves.of_counts(kept)
        for index, dims in enumerate(self.kinds):
            at = tuple(place[dim] for dim in dims)
            here = self.counts[index][at]
            here += values[0].count // here.numel() if counts is None else counts.along(dims)[0]
            for which, half in enumerate(values):
                squares, largest = half.along(dims)
                self.squares[index][which][at] += squares
                into = self.maxima[index][which][at]
                torch.maximum(into, largest, out=into)

    def groups(self) -> tuple[Groups, ...]:
        made = []
        for dims, count, squares, maxima in zip(
            self.kinds, self.counts, self.squares, self.maxima, strict=True
        ):
            candidate, eager, reference = (x.reshape(-1) for x in squares)
            count = count.reshape(-1)
            rms = (eager / count.clamp(min=1)).sqrt()
            largest = (x.reshape(-1) for x in maxima)
            shape = self._sizes(dims)
            made.append(Groups(dims, shape, count, candidate, rms, reference, *largest))
        return tuple(made)

    def _sizes(self, dims: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(self.shape[dim] for dim in dims)

    def _slices(self, dims: tuple[int, ...]) -> int:
        return math.prod(self._sizes(dims))


@dataclass
class Halves:
    """Squares and sizes of a block, over its first two dimensions and over all others.

    Every kind of slice is summed up from one of the two, so that the block is read but twice.
    """

    count: int
    front: tuple[Tensor, Tensor]
    back: tuple[Tensor, Tensor] | None = None

    @staticmethod
    def of(x: Tensor) -> Halves:
        return Halves._over(x.square(), x.abs())

    @staticmethod
    def of_counts(kept: Tensor) -> Halves:
        counts = kept.double()
        return Halves._over(counts, counts)

    @staticmethod
    def _over(summed: Tensor, largest: Tensor) -> Halves:
        ndim, count = summed.ndim, summed.numel()
        if ndim <= 2 or not count:
            return Halves(count, (summed, largest))
        last, first = tuple(range(2, ndim)), (0, 1)
        return Halves(
            count,
            (summed.sum(last), largest.amax(last)),
            (summed.sum(first), largest.amax(first)),
        )

    @property
    def squares(self) -> float:
        return float(self.front[0].sum())

    @property
    def largest(self) -> float:
        """Not finite if any element is not."""
        return float(self.front[1].amax()) if self.count else 0.0

    def along(self, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """What belongs to each slice along some dimensions."""
        half, first = (self.front, 0) if dims[0] < 2 else (self.back, 2)
        assert half is not None
        others = tuple(d for d in range(half[0].ndim) if d + first not in dims)
        if not others:
            return half
        return half[0].sum(others), half[1].amax(others)
