"""One case through candidate, eager and the float64 oracle, and the finding that follows.

In: Sides and a Case. Out: a Finding. verify asks for one for each of its checks, bench once more
after it has timed. The candidate always runs first: there is no result yet that it could find. A
near miss is decided over several draws, and over eager runs whose inputs differ slightly, all
pooled: where few elements carry most of the error, a single run of eager may be exact by luck.

All runs of a comparison start from one seed, and the oracle gets eager's random numbers. A
candidate that draws others is judged by `statistic` instead.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from kernelwright.problem import describe
from kernelwright.verify import statistic
from kernelwright.verify.cases import Case
from kernelwright.verify.certificate import Finding
from kernelwright.verify.compare import (
    Figures,
    Metric,
    coordinates,
    first_above_in,
    first_misplaced,
    first_unequal,
    measure,
    real,
)
from kernelwright.verify.inputs import (
    Inputs,
    Named,
    map_floating,
    map_tensors,
    seeded,
    shaken,
    wide,
)
from kernelwright.verify.side import Raised
from kernelwright.verify.sides import ONCE, Act, Sides
from kernelwright.verify.wire import seen

DRAWS, FEWEST_DRAWS = 4, 2
NUDGES, FEWEST_NUDGES = 8, 3
HOPELESS = 100.0  # times over what is allowed: no luck of eager's explains it
# Eager's error counts this many times where the inputs do not matter, as those of all zeros and
# denormal ones: a norm of equal numbers divides what rounding leaves by nearly nothing, and how
# much is left is the luck of an order of summation.
UNSAMPLED = 8.0
UNMOVED = 1e-6
AFFORDABLE_SECONDS = 10.0
SHOWN = 320  # characters of a tree that a finding quotes


@dataclass(frozen=True)
class Trial:
    """One draw of a case whose outputs have the right structure: what is left is arithmetic.

    `drew` if eager drew random numbers. `oracle` is float64 with the same numbers; or eager itself,
    if `by_eager`, where they could not be had.
    """

    exact: Any
    candidate: list[Tensor]
    oracle: list[Tensor]
    figures: list[Figures]
    labels: list[str]
    drew: bool = False
    by_eager: bool = False
    by_rounding: bool = False

    @property
    def ratio(self) -> float:
        return max((figures.worst.ratio for figures in self.figures), default=0.0)

    @property
    def worst_group(self) -> tuple[int, Metric] | None:
        """The output and the slice of it that is furthest over what is allowed for it."""
        found = [(i, x.worst_group) for i, x in enumerate(self.figures)]
        told = [(i, metric) for i, metric in found if metric is not None]
        return max(told, key=lambda pair: pair[1].ratio, default=None)

    @property
    def right(self) -> bool:
        group = self.worst_group
        return self.ratio <= 1.0 and (group is None or group[1].ratio <= 1.0)

    @property
    def close(self) -> bool:
        """Whether more draws may turn the verdict: in a slice eager may be exact by any luck."""
        lenient = self.by_eager or self.by_rounding
        return not self.right and (lenient or self.ratio < HOPELESS)


def judge(subject: Sides, case: Case, act: Act = ONCE, eager: Any = None) -> Finding:
    """Whether the candidate is right on this case; `eager` is the original's result if known."""
    finding = _decided(subject, case, act, eager)
    return replace(finding, inputs=case.make(0)) if finding.passed is False else finding


def _decided(subject: Sides, case: Case, act: Act, eager: Any) -> Finding:
    first = attempt(subject, case, 0, act, eager)
    if isinstance(first, Finding):
        return first if first.passed is not False else _or_statistic(subject, case, act, first)
    if not first.close:
        finding = conclude(case.name, first)
        return finding if finding.passed else _or_statistic(subject, case, act, finding)
    return _pooled(subject, case, act, first)


def _pooled(subject: Sides, case: Case, act: Act, first: Trial) -> Finding:
    """A near miss over several draws, until it is within what is allowed or the time is over."""
    until = time.monotonic() + AFFORDABLE_SECONDS
    trial = replace(first, figures=_nudged(subject, case, 0, act, first, until))
    for draw in range(1, DRAWS):
        if trial.right or (draw >= FEWEST_DRAWS and time.monotonic() > until):
            break
        more = attempt(subject, case, draw, act)
        if isinstance(more, Finding):
            return more
        figures = _nudged(subject, case, draw, act, more, until)
        pooled = [a + b for a, b in zip(trial.figures, figures, strict=True)]
        trial = replace(trial, figures=pooled)
    return conclude(case.name, trial)


def settle(subject: Sides, case: Case, draw: int, act: Act, trial: Trial) -> Trial:
    """The trial with eager's error from several runs, if that may turn the verdict."""
    trial = replace(trial, by_rounding=subject.may_round)
    if not trial.close:
        return trial
    until = time.monotonic() + AFFORDABLE_SECONDS
    return replace(trial, figures=_nudged(subject, case, draw, act, trial, until))


def _or_statistic(subject: Sides, case: Case, act: Act, finding: Finding) -> Finding:
    """The finding stands, unless the candidate draws random numbers of its own."""
    if not statistic.draws_other_numbers(subject, case, act):
        return finding
    return statistic.judge_distribution(subject, case, act)


def _nudged(
    subject: Sides, case: Case, draw: int, act: Act, trial: Trial, until: float
) -> list[Figures]:
    """The trial's figures with eager's error sampled on inputs and weights that differ slightly.

    Each run is held against float64 on the same ones; where there is none to be had, inputs differ
    in the last bit alone. The first one has the weights as they are. No more runs than are needed:
    those of a large model take seconds.

    Where torch may round products to TF32, what a run that does so is off by is eager's error by
    right: whether eager itself does is up to an algorithm that may differ for another layout.
    """
    samples: list[list[Figures]] = []
    rounded: list[list[Figures]] = []
    inputs = case.make(draw)
    for nudge in range(NUDGES):
        if nudge >= FEWEST_NUDGES:
            enough = replace(trial, figures=_with_eager(trial.figures, samples, rounded))
            if enough.right or time.monotonic() > until:
                return enough.figures
        number = draw * NUDGES + nudge
        with seeded(number):
            other = map_floating(_nudge if trial.by_eager else shaken, inputs)
        if trial.by_eager:
            eager, exact = attempted(lambda: subject.original(other, act, draw)), trial.exact  # noqa: B023
        else:
            with subject.shaken(number) if nudge else nullcontext():
                eager, exact = _both(subject, other, act, draw)
        samples += _sampled(case, eager, exact)
        if subject.may_round:
            eager = attempted(lambda: subject.rounded(inputs, act, draw, nudge))  # noqa: B023
            rounded += _sampled(case, eager, trial.exact)
    return _with_eager(trial.figures, samples, rounded)


def _with_eager(
    figures: list[Figures], samples: list[list[Figures]], rounded: list[list[Figures]]
) -> list[Figures]:
    """The figures with eager's error from these runs and its own."""
    luck = UNSAMPLED if _same(figures, samples[:1]) else 1.0
    runs = [figures, *samples]
    return [
        own.with_eager([x[i] for x in runs], luck, rounded=[x[i] for x in rounded])
        for i, own in enumerate(figures)
    ]


def _same(figures: list[Figures], others: list[list[Figures]]) -> bool:
    """Whether eager is off by the same numbers on other inputs: they do not matter to it."""
    return bool(others) and all(
        math.isclose(a.eager_max, b.eager_max, rel_tol=UNMOVED)
        and math.isclose(a.eager_squares, b.eager_squares, rel_tol=UNMOVED)
        for other in others
        for a, b in zip(figures, other, strict=True)
    )


def _both(subject: Sides, inputs: Inputs, act: Act, draw: int) -> tuple[Any, Any]:
    """Eager and float64."""
    eager = attempted(lambda: subject.original(inputs, act, draw))
    if isinstance(eager, Raised):
        return eager, None
    return eager, attempted(lambda: subject.oracle(inputs, act, draw, replay=subject.drew))


def _sampled(case: Case, eager: Any, exact: Any) -> list[list[Figures]]:
    if isinstance(eager, Raised) or isinstance(exact, Raised):
        return []
    compared = trial_of(case.name, eager, eager, exact, by_group=case.by_group)
    return [compared.figures] if isinstance(compared, Trial) else []


def _nudge(x: Tensor) -> Tensor:
    return x * torch.randint_like(x, -1, 2).mul_(torch.finfo(x.dtype).eps).add_(1)


def attempt(
    subject: Sides, case: Case, draw: int, act: Act = ONCE, eager: Any = None
) -> Trial | Finding:
    """One draw: a Finding when it is decided already, else the figures to decide by.

    `eager` is the result of the last run of the original, if that was of this draw and act.
    """
    inputs = case.make(draw)
    ours = attempted(lambda: subject.candidate(inputs, act, draw))
    theirs = eager
    if theirs is None:
        theirs = attempted(lambda: subject.original(inputs, act, draw))
    if isinstance(theirs, Raised):
        return _both_raise(case, ours, theirs)
    if isinstance(ours, Raised):
        return Finding(False, f"on {case.name} the candidate raised {ours}")
    if (wrong := structure(ours, theirs, case.strides, case.dense)) is not None:
        return Finding(False, f"on {case.name} {wrong}")
    drew = subject.drew
    exact = attempted(lambda: subject.oracle(inputs, act, draw, replay=drew))
    if isinstance(exact, Raised) and exact.unreplayable:
        known = map_tensors(wide, theirs)
        trial = trial_of(case.name, ours, theirs, known, by_group=case.by_group)
        return replace(trial, drew=True, by_eager=True) if isinstance(trial, Trial) else trial
    if isinstance(exact, Raised):
        return Finding(None, f"there is no oracle: the original in float64 raised {exact}")
    trial = trial_of(case.name, ours, theirs, exact, by_group=case.by_group)
    if isinstance(trial, Finding):
        return trial
    return replace(trial, drew=drew, by_rounding=subject.may_round)


def trial_of(
    name: str, ours: Any, theirs: Any, exact: Any, *, by_group: bool = False
) -> Trial | Finding:
    """Outputs of the same structure: exact where they must be, figures for the rest."""
    triples = zip(*(_leaves(x) for x in (ours, theirs, exact)), strict=True)
    trial = Trial(exact, [], [], [], [])
    for label, (a, b, c) in zip(_labels(ours), triples, strict=True):
        if not isinstance(a, Tensor):
            if a not in (b, c):
                return Finding(False, f"on {name} {label} is {a!r} instead of {b!r}")
            continue
        figures = None
        if a.is_floating_point() or a.is_complex():
            figures = measure(a, b, c, by_group)
            # Most results are finite all over, and then nothing can be misplaced.
            all_finite = figures.count == real(a).numel()
            bad = None if all_finite else first_misplaced(a, b, c)
        else:
            bad = first_unequal(a, b, c)
        if bad is not None:
            return Finding(False, f"on {name} {label}{_element(a, b, c, bad)}")
        if figures is not None:
            trial.labels.append(label)
            trial.candidate.append(a)
            trial.oracle.append(c)
            trial.figures.append(figures)
    return trial


def conclude(name: str, trial: Trial) -> Finding:
    """The finding of the output that is furthest over, or nearest to, what is allowed."""
    if not trial.figures:
        return Finding(True, f"equal on {name}")
    if not any(figures.count for figures in trial.figures):
        return Finding(True, f"the same on {name}, which leave nothing finite to measure")
    index = max(range(len(trial.figures)), key=lambda i: trial.figures[i].worst.ratio)
    figures = trial.figures[index]
    worst = figures.worst
    group = trial.worst_group
    if trial.right:
        detail = f"{worst} on {name}{_numbers(trial)}{_told(group)}"
        return Finding(True, detail, worst.error, worst.eager, worst.allowed)
    limit = figures.maximum
    if worst.ratio <= 1.0:
        assert group is not None
        index, worst = group
        limit = worst
    ours, exact = trial.candidate[index], trial.oracle[index]
    bad = first_above_in(ours, exact, limit)
    detail = f"on {name} {trial.labels[index]}{_element(ours, None, exact, bad)}: {worst}"
    return Finding(False, detail, worst.error, worst.eager, worst.allowed)


def _told(group: tuple[int, Metric] | None) -> str:
    return "" if group is None else f"; in its slices {group[1].ratio:.2f} of what is allowed"


def _numbers(trial: Trial) -> str:
    """How the random numbers of a random model were dealt with."""
    if trial.by_eager:
        return ", under one seed and against eager, whose random numbers float64 could not be given"
    return ", under one seed, float64 with eager's random numbers" if trial.drew else ""


def structure(ours: Any, theirs: Any, strides: bool, dense: bool = False) -> str | None:
    """How the candidate's outputs differ from eager's in anything but their values."""
    left, left_tree = pytree.tree_flatten(ours)
    right, right_tree = pytree.tree_flatten(theirs)
    if left_tree != right_tree:
        return f"the candidate returns {_shown(ours)} instead of {_shown(theirs)}"
    for label, a, b in zip(_labels(ours), left, right, strict=True):
        if type(a) is not type(b) and not (isinstance(a, Tensor) and isinstance(b, Tensor)):
            return f"{label} is {_shown(a)} instead of {_shown(b)}"
        if not isinstance(a, Tensor):
            continue
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"{label} is {describe(a)} instead of {describe(b)}"
        if seen(a) != seen(b):
            return f"{label} is a {_shown_kind(a)} instead of a {_shown_kind(b)}"
        if strides and _strides(a) != _strides(b) and not (dense and _keeps_layout(a, b)):
            return f"{label} has strides {a.stride()} instead of {b.stride()}"
    return None


def _keeps_layout(ours: Tensor, theirs: Tensor) -> bool:
    """Whether eager returns contiguous memory and the candidate dense memory in another order."""
    sizes = sorted((s, n) for n, s in zip(ours.shape, ours.stride(), strict=True) if n > 1)
    expected = 1
    for stride, size in sizes:
        if stride != expected:
            return False
        expected *= size
    return theirs.is_contiguous()


def _shown_kind(x: Tensor) -> str:
    return f"{seen(x).kind} on {seen(x).device}"


def _shown(outputs: Any) -> str:
    """A tree of outputs in short: its tensors by dtype and shape."""
    return str(pytree.tree_map(lambda x: _Bare(describe(x)), outputs))[:SHOWN]


class _Bare(str):
    __repr__ = str.__str__


def _labels(outputs: Any) -> list[str]:
    """What to call each leaf: by its name if a check of ours gave it one, else by its number."""
    if not isinstance(outputs, Named):
        return [f"output {index}" for index in range(len(pytree.tree_leaves(outputs)))]
    labels: list[str] = []
    for name, value in outputs.items():
        count = len(pytree.tree_leaves(value))
        labels += [name] if count == 1 else [f"{name} [{index}]" for index in range(count)]
    return labels


def _strides(x: Tensor) -> list[int]:
    """The strides that matter: those of dimensions with more than one element."""
    pairs = zip(x.shape, x.stride(), strict=True)
    return [stride for size, stride in pairs if size > 1] if x.numel() else []


def _both_raise(case: Case, ours: object, theirs: Raised) -> Finding:
    if isinstance(ours, Raised):
        return Finding(True, f"on {case.name} both raise: {theirs}")
    said = f"on {case.name} the original raises {theirs}, the candidate does not"
    return Finding(False if case.must_raise else None, said)


def attempted(function: Callable[[], Any]) -> Any:
    """The function's result, or what user code raised."""
    try:
        return function()
    except Raised as error:
        return error


def _leaves(outputs: Any) -> list[Any]:
    """Outputs as a list, with Python floats as tensors so that they are judged like the others."""
    return [
        torch.tensor(x, dtype=torch.float32) if isinstance(x, float) else x
        for x in pytree.tree_leaves(outputs)
    ]


def _element(ours: Tensor, eager: Tensor | None, exact: Tensor, flat: int) -> str:
    def at(x: Tensor) -> str:
        return f"{real(x).reshape(-1)[flat].item():.9g}"

    index = coordinates(flat, real(ours).shape)
    said = f", eager says {at(eager)}" if eager is not None else ""
    return f" at {index} is {at(ours)}{said}, float64 says {at(exact)}"
