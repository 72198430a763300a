"""Is the candidate as close to float64 as eager is?

In: the outputs of the candidate, of eager, and of the float64 oracle. Out: Figures, which add up
over several draws, of an output as a whole and of its slices (groups.py). The one idea: the
tolerance is eager's own error, times two, plus a floor of a few eps of the result, so that neither
a fixed tolerance nor luck decides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor

from kernelwright.verify.groups import Groups, groups_of
from kernelwright.verify.sums import summed

FACTOR = 2.0
FLOOR = 4.0
# In a float64 model the oracle is no more exact than eager: two orders of summation of a few
# thousand terms differ by tens of eps although both are right.
FLOOR_FLOAT64 = 128.0
# In a slice that is small beside the rest a right candidate may be accurate to what is usual for
# the function, as tanh by 1 - 2 / (exp(2 x) + 1) is; half precision is off by thousands of eps.
FLOOR_OF_SLICES = 64.0
CHUNK = 1 << 18  # elements: the first bad one is often among the first

Number = TypeVar("Number", float, Tensor)


@dataclass(frozen=True)
class Metric:
    """One way of measuring the error, with what is allowed.

    `places` tells by dimension and index of which slice, if not of all of an output.
    """

    name: str
    error: float
    eager: float
    allowed: float
    places: tuple[tuple[int, int], ...] = ()

    @property
    def ratio(self) -> float:
        return self.error / self.allowed

    def __str__(self) -> str:
        bounds = f"eager {self.eager:.2e}, allowed {self.allowed:.2e}"
        where = " and ".join(f"{place} of dimension {dim}" for dim, place in self.places)
        inside = f" in slice {where}" if where else ""
        return f"{self.name} error {self.error:.2e}{inside} ({bounds})"


@dataclass(frozen=True)
class Figures:
    """Sums of squares and maxima of one output's errors, against float64."""

    dtype: torch.dtype
    count: int = 0
    candidate_squares: float = 0.0
    eager_squares: float = 0.0
    reference_squares: float = 0.0
    candidate_max: float = 0.0
    eager_max: float = 0.0
    reference_max: float = 0.0
    groups: tuple[Groups, ...] = field(default=(), kw_only=True)

    def __add__(self, other: Figures) -> Figures:
        return Figures(
            self.dtype,
            self.count + other.count,
            self.candidate_squares + other.candidate_squares,
            self.eager_squares + other.eager_squares,
            self.reference_squares + other.reference_squares,
            max(self.candidate_max, other.candidate_max),
            max(self.eager_max, other.eager_max),
            max(self.reference_max, other.reference_max),
            groups=tuple(a + b for a, b in zip(self.groups, other.groups, strict=True)),
        )

    def with_eager(
        self, samples: Sequence[Figures], luck: float = 1.0, rounded: Sequence[Figures] = ()
    ) -> Figures:
        """The same, with eager's error from several runs, times `luck`.

        Of the squares it is the mean, of the maxima the maximum; what runs with rounded operands
        are off by is eager's by right, however many others there are.
        """
        every = (*samples, *rounded)
        by_group = zip(*(x.groups for x in every), strict=True)
        mean = luck**2 * sum(x.eager_squares for x in samples) / len(samples)
        return replace(
            self,
            groups=tuple(
                own.with_eager(of, luck) for own, of in zip(self.groups, by_group, strict=True)
            ),
            eager_squares=max([mean, *(x.eager_squares for x in rounded)]),
            eager_max=luck * max(x.eager_max for x in every),
        )

    @property
    def rms(self) -> Metric:
        candidate, eager, reference = (
            math.sqrt(squares / max(self.count, 1))
            for squares in (self.candidate_squares, self.eager_squares, self.reference_squares)
        )
        return self._metric("rms", candidate, eager, reference)

    @property
    def maximum(self) -> Metric:
        return self._metric("max", self.candidate_max, self.eager_max, self.reference_max)

    @property
    def worst(self) -> Metric:
        return max(self.rms, self.maximum, key=lambda metric: metric.ratio)

    @cached_property
    def worst_group(self) -> Metric | None:
        """Of all slices; None where the output has none."""
        found = [groups.worst(self._allowed_in_slices) for groups in self.groups]
        metrics = [Metric(x.name, x.error, x.eager, x.allowed, x.places) for x in found]
        return max(metrics, key=lambda metric: metric.ratio, default=None)

    def _metric(self, name: str, error: float, eager: float, reference: float) -> Metric:
        floor = FLOOR_FLOAT64 if self.dtype == torch.float64 else FLOOR
        return Metric(name, error, eager, self._allowed(eager, reference, floor))

    def _allowed_in_slices(self, eager: Tensor, reference: Tensor) -> Tensor:
        """Zeros may be what float64's own rounding leaves, such as 1 + erf(-8)."""
        floor = FLOOR_FLOAT64 if self.dtype == torch.float64 else FLOOR_OF_SLICES
        left = torch.finfo(torch.float64).eps * self.reference_max
        return self._allowed(eager, reference, floor) + left * (reference == 0)

    def _allowed(self, eager: Number, reference: Number, floor: float) -> Number:
        """For an error, from eager's and the size of the result; of numbers, or of many at once."""
        limits = torch.finfo(self.dtype)
        spacing_of_denormals = limits.tiny * limits.eps
        return FACTOR * eager + floor * (limits.eps * reference + spacing_of_denormals)


def measure(candidate: Tensor, eager: Tensor, oracle: Tensor, by_group: bool = False) -> Figures:
    """The errors over all elements that are finite in all three; of slices too, if `by_group`."""
    ours = real(candidate.detach())
    three = [real(x.detach()).reshape(ours.shape) for x in (candidate, eager, oracle)]
    sums = summed(three, by_group)
    figures = (*sums.total.squares.tolist(), *sums.rooted(sums.total.maxima).tolist())
    return Figures(ours.dtype, sums.count, *figures, groups=groups_of(sums))


def first_misplaced(candidate: Tensor, eager: Tensor, oracle: Tensor) -> int | None:
    """The flat index of the first NaN or infinity that neither eager nor float64 has there.

    Float64 counts too because eager may overflow, or spread a NaN, where a better algorithm does
    not; the candidate may be right in either way.
    """
    start = 0
    for ours, theirs, exact in _chunks(candidate, eager, oracle):
        if not bool((ours.sum() + theirs.sum()).isfinite()):  # as any sum of others is not
            kind = _kind(ours)
            wrong = (kind != _kind(theirs)) & (kind != _kind(exact.to(ours.dtype)))
            if bool(wrong.any()):
                return start + int(wrong.int().argmax())
        start += ours.numel()
    return None


def first_above(candidate: Tensor, oracle: Tensor, limit: float) -> int:
    """The flat index of the first element whose error is over the limit, else of the worst one."""
    worst, worst_at, start = -1.0, 0, 0
    for ours, _, exact in _chunks(candidate, oracle, oracle):
        error = (ours.double() - exact.double()).abs().nan_to_num(0.0, 0.0, 0.0)
        above = error > limit
        if bool(above.any()):
            return start + int(above.int().argmax())
        if error.numel() and float(error.max()) > worst:
            worst, worst_at = float(error.max()), start + int(error.argmax())
        start += ours.numel()
    return worst_at


def first_above_in(candidate: Tensor, oracle: Tensor, metric: Metric) -> int:
    """The same within the slice that a metric is of; the index is that in the whole."""
    ours = real(candidate.detach())
    parts = [ours, real(oracle.detach()).reshape(ours.shape)]
    for dim, place in metric.places:
        parts = [x.narrow(dim, place, 1) for x in parts]
    inside = first_above(parts[0], parts[1], metric.allowed)
    index = dict(enumerate(coordinates(inside, parts[0].shape))) | dict(metric.places)
    return sum(index[d] * math.prod(ours.shape[d + 1 :]) for d in range(ours.ndim))


def first_unequal(candidate: Tensor, eager: Tensor, oracle: Tensor) -> int | None:
    """For integers and booleans: the first element that is neither eager's nor float64's."""
    wrong = ((candidate != eager) & (candidate != oracle)).reshape(-1)
    return int(wrong.int().argmax()) if bool(wrong.any()) else None


def same_bits(left: Tensor, right: Tensor) -> bool:
    """Equality that also holds between equal NaNs."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    return torch.equal(_bytes(left), _bytes(right))


def _bytes(x: Tensor) -> Tensor:
    """contiguous() would leave a single element its step, and then it has no bytes to view."""
    flat = x.detach().reshape(-1)
    if flat.stride() != (1,):
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8)


def equal_leaves(left: Sequence[object], right: Sequence[object]) -> bool:
    return len(left) == len(right) and all(
        same_bits(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a == b
        for a, b in zip(left, right, strict=True)
    )


def coordinates(flat: int, shape: Sequence[int]) -> tuple[int, ...]:
    """The index of an element, from its position in row-major order."""
    index: list[int] = []
    for size in reversed(shape):
        flat, position = divmod(flat, size)
        index.append(position)
    return tuple(reversed(index))


def real(value: Tensor) -> Tensor:
    """A complex tensor as pairs of real numbers; any other as it is."""
    return torch.view_as_real(value.resolve_conj()) if value.is_complex() else value


def _kind(value: Tensor) -> Tensor:
    return value.isnan().int() + 2 * value.isposinf().int() + 3 * value.isneginf().int()


def _chunks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    flat = [real(x.detach()).reshape(-1) for x in tensors]
    yield from zip(*(torch.split(x, CHUNK) for x in flat), strict=True)
