"""Random models whose candidate draws other numbers than eager: the same distribution?

In: a case. Out: a Finding from a two-sample permutation test over many draws of each: means and
variances of single outputs, and of sums along each dimension, which see numbers that are not
independent. Draws are exchangeable if candidate and eager have one distribution, so the rate of
false alarms holds whatever that distribution is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelwright.verify.cases import Case
from kernelwright.verify.certificate import Finding
from kernelwright.verify.inputs import tensors_in
from kernelwright.verify.side import Raised
from kernelwright.verify.sides import Act, Sides

DRAWS = 128
FEWEST_DRAWS = 48
SECONDS = 4.0  # for all draws of one check
ELEMENTS = 2048  # of each output that are looked at, and as many sums
PERMUTATIONS = 1999
STATISTICS = 4
LEVEL = STATISTICS / (PERMUTATIONS + 1)  # the smallest that so many permutations can tell
CONFIRMATIONS = 2  # independent sets of draws that must all be rejected
TIE = 1e-9  # relative: equal statistics differ by rounding, and rare events give many equal ones
ALIKE = 0.1  # of the difference that another seed makes
CERTAIN = 1e-4  # relative spread under which a number is taken for not random


def draws_other_numbers(subject: Sides, case: Case, act: Act) -> bool:
    """Whether eager is random here, and the candidate is no nearer to it than another seed is."""
    try:
        theirs = flat(subject.original(case.make(0), act, 0))
        if not subject.drew:
            return False
        others = flat(subject.original(case.make(0), act, 1))
        ours = flat(subject.candidate(case.make(0), act, 0))
    except Raised:
        return False
    return are_other_numbers(ours, theirs, others)


def are_other_numbers(ours: Tensor, theirs: Tensor, others: Tensor) -> bool:
    """Whether a result is about as far from eager's as that of another seed."""
    if ours.shape != theirs.shape or others.shape != theirs.shape:
        return False
    keep = ours.isfinite() & theirs.isfinite() & others.isfinite()
    between = (theirs - others)[keep].square().sum()
    return bool((ours - theirs)[keep].square().sum() > ALIKE**2 * between)


def judge_distribution(subject: Sides, case: Case, act: Act) -> Finding:
    """Two samples, one of each; only a difference that a second pair of samples shows counts."""
    draws = _affordable(subject)
    if draws < FEWEST_DRAWS:
        return Finding(
            None,
            f"on {case.name} the candidate draws other random numbers than eager, "
            "and there is no time for enough draws to compare the distributions",
        )
    chance = LEVEL**CONFIRMATIONS
    told = f"the candidate draws other numbers than eager; {draws} draws of each"
    what = ""
    for confirmation in range(CONFIRMATIONS):
        start = 2 + confirmation * 2 * draws

        def sample(run: Callable[[int], Any], first: int) -> Tensor:
            return torch.stack([_features(run(first + i)) for i in range(draws)])

        inputs = case.make(0)
        ours = sample(lambda i: subject.candidate(inputs, act, i), start)  # noqa: B023
        theirs = sample(lambda i: subject.original(inputs, act, i), start + draws)  # noqa: B023
        level, what = two_samples(ours, theirs)
        if level > LEVEL:
            return Finding(
                True,
                f"on {case.name} {told} have the same means and variances "
                f"(p = {level:.2g}, false alarms once in {1 / chance:.0f})",
            )
    return Finding(False, f"on {case.name} {told} differ in {what}, twice; chance is {chance:.0e}")


def two_samples(ours: Tensor, theirs: Tensor) -> tuple[float, str]:
    """The level at which two samples of vectors differ, and in what they differ most."""
    pooled = torch.cat([ours, theirs])
    finite = pooled.isfinite().all(0)
    pooled = pooled[:, finite]
    mean, spread = pooled.mean(0), pooled.std(0)
    size = pooled.square().mean(0).sqrt()
    certain = spread <= CERTAIN * size
    gap = (ours[:, finite].mean(0) - theirs[:, finite].mean(0)).abs()
    if bool((gap > CERTAIN * size)[certain].any()):
        return 0.0, "numbers that are not random"
    scaled = ((pooled - mean) / spread)[:, ~certain]
    if not scaled.numel():
        return 1.0, "nothing"
    statistics = _statistics(scaled, ours.shape[0])
    observed = statistics[:1] * (1 - TIE)  # the first row is the sample itself
    ranks = (statistics >= observed).double().mean(0)
    level, which = ranks.min(0)
    names = ("one mean", "many means", "one variance", "the variances as a whole")
    return min(1.0, float(level) * STATISTICS), names[int(which)]


def _statistics(scaled: Tensor, count: int) -> Tensor:
    """Four statistics of the difference of the halves, for the sample and for permutations."""
    signs = _permutations(scaled.shape[0], count)
    means, variances = signs @ scaled, signs @ scaled.square()
    return torch.stack(
        [
            means.abs().amax(1),
            means.square().sum(1),
            variances.abs().amax(1),
            variances.sum(1).abs(),
        ],
        dim=1,
    )


@functools.cache
def _permutations(total: int, count: int) -> Tensor:
    """Rows that take the mean of `count` draws and subtract that of the others; the first of the
    sample as it is."""
    generator = torch.Generator().manual_seed(0)
    signs = torch.full((PERMUTATIONS + 1, total), -1.0 / (total - count), dtype=torch.float64)
    signs[0, :count] = 1.0 / count
    for row in range(1, PERMUTATIONS + 1):
        signs[row, torch.randperm(total, generator=generator)[:count]] = 1.0 / count
    return signs


def flat(outputs: Any) -> Tensor:
    """All numbers of a result as one vector."""
    parts = [x.detach().reshape(-1).double() for x in tensors_in(outputs) if not x.is_complex()]
    return torch.cat(parts).cpu() if parts else torch.zeros(0)


def _features(outputs: Any) -> Tensor:
    """Elements of every output, spread over it, and its sums along each dimension."""
    parts: list[Tensor] = []
    for x in tensors_in(outputs):
        if not x.is_complex():
            wide = x.detach().double()
            sums = [wide.sum(dim).reshape(-1) for dim in range(wide.ndim) if wide.ndim > 1]
            parts += [_thinned(part) for part in (wide.reshape(-1), *sums)]
    return torch.cat(parts).cpu()


def _thinned(x: Tensor) -> Tensor:
    return x[:: max(1, -(-x.numel() // ELEMENTS))]


def _affordable(subject: Sides) -> int:
    return min(DRAWS, int(SECONDS / (2 * CONFIRMATIONS * max(subject.case_seconds, 1e-9))))
