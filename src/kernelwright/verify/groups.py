"""Errors by group: one slice of an output along a dimension, or along its first two.

In: sums of a candidate's and of eager's errors against float64 (sums.py). Out: Groups, which pool
over several draws. The one idea: a small row or channel may be wrong altogether and leave no trace
in the figures of the whole, so each slice is held to eager's error in slices of about its own size.
One slice alone would be held to eager's luck there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from kernelwright.verify.sums import Sums

NEIGHBOURS = 32  # bins of slices of about the same size; fewer where there are few in all
ALIKE = 8.0  # times as large as it, at most, is one of about a slice's size

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

    Of several draws eager's error, which is the measure, is the largest, and the candidate's the
    smallest: a mistake is in its slice whatever the inputs are, and among thousands of slices there
    is always one with all of its bad luck in one number.
    """

    dims: tuple[int, ...]
    shape: tuple[int, ...]
    count: Tensor
    candidate_rms: Tensor
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
            torch.minimum(self.candidate_rms, other.candidate_rms),
            torch.maximum(self.eager_rms, other.eager_rms),
            self.reference_squares + other.reference_squares,
            torch.minimum(self.candidate_max, other.candidate_max),
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
        size = (self.reference_squares / self.count.clamp(min=1)).sqrt()
        rms = self.candidate_rms, self.eager_rms, size
        maximum = self.candidate_max, self.eager_max, self.reference_max
        found = [
            self._worst(name, allowed, *figures)
            for name, figures in (("rms", rms), ("max", maximum))
        ]
        return max(found, key=lambda worst: worst.error / worst.allowed)

    @property
    def _bin(self) -> int:
        """Slices that may share their luck: those of one channel, say, of about the same size.

        Where a channel's inputs are far from zero against their spread, what rounding its weights
        adds to a result is the same number in every sample.
        """
        return 1 if len(self.dims) == 1 else max(self.shape)

    def _worst(
        self, name: str, allowed: Allowed, error: Tensor, eager: Tensor, size: Tensor
    ) -> Worst:
        order, nearby = size.argsort(), torch.empty_like(eager)
        nearby[order] = _largest_nearby(eager[order], size[order], self._bin)
        bound = allowed(nearby, size)
        index = int((error / bound).argmax())
        figures = (float(x[index]) for x in (error, eager, bound))
        places = (index,) if len(self.dims) == 1 else divmod(index, self.shape[1])
        return Worst(name, tuple(zip(self.dims, places, strict=True)), *figures)


def _largest_nearby(values: Tensor, sizes: Tensor, together: int) -> Tensor:
    """The largest of each value and of its neighbours, in the order of their slices' sizes.

    Neighbours are bins of so many slices. Of one that is far larger, what its value would be if it
    were not.
    """
    bins = -(-len(values) // together)
    missing = bins * together - len(values)
    largest, size = (
        functional.pad(x, (0, missing)).view(bins, together).amax(1) for x in (values, sizes)
    )
    each_side = min(NEIGHBOURS, bins // 2) // 2
    width = 2 * each_side + 1
    first = (torch.arange(len(values)) // together - each_side).clamp(0, bins - width)
    nearby, size = (x.unfold(0, width, 1)[first] for x in (largest, size))
    share = (ALIKE * sizes[:, None] / size).nan_to_num(0.0, posinf=1.0).clamp(max=1.0)
    return torch.maximum(values, (nearby * share).amax(1))


def groups_of(sums: Sums) -> tuple[Groups, ...]:
    """The slices of an output of every kind, from its sums."""
    made = []
    for found in sums.slices():
        candidate, eager, reference = (x.reshape(-1).cpu() for x in found.squares)
        largest = (x.reshape(-1).cpu() for x in found.maxima)
        count = found.counts.reshape(-1).cpu()
        ours, theirs = ((x / count.clamp(min=1)).sqrt() for x in (candidate, eager))
        shape = tuple(found.counts.shape)
        made.append(Groups(found.dims, shape, count, ours, theirs, reference, *largest))
    return tuple(made)
