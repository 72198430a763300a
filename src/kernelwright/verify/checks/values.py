"""Checks that judge one case each: the same values as the original on these inputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from kernelwright.verify import cases, statistic
from kernelwright.verify.certificate import Finding
from kernelwright.verify.inputs import map_tensors
from kernelwright.verify.judge import attempted, conclude, judge, structure, trial_of
from kernelwright.verify.side import Raised
from kernelwright.verify.sides import ONCE, Act
from kernelwright.verify.subject import Subject

LARGER_SECONDS = 4.0  # what the check of a larger batch may cost


def runs(subject: Subject) -> Finding:
    """The first call of all: what is built lazily is built now, and its result counts as well."""
    return judge(subject, cases.renamed(cases.own(subject), "the first call"))


def same_structure(subject: Subject) -> Finding:
    """Type, shape, dtype, device and strides of the outputs."""
    case = cases.own(subject)
    inputs = case.make(0)
    wrong = structure(subject.candidate(inputs), subject.original(inputs), case.strides)
    return Finding(wrong is None, wrong or "type, shape, dtype, device and strides are eager's")


def oracle(subject: Subject) -> Finding:
    """The file's own inputs, at their own size."""
    return judge(subject, cases.own(subject, subject.batch))


def on_distribution(subject: Subject, name: str) -> Finding:
    act = Act("by rows", {"groups": cases.SIZES}) if name == cases.MIXED else ONCE
    return judge(subject, cases.distribution(subject, name), act)


def on_own_inputs(subject: Subject) -> Finding:
    return judge(subject, cases.own(subject))


def as_a_whole(subject: Subject) -> Finding:
    """Without its slices: of small ones a right candidate need not be a good part."""
    return judge(subject, replace(cases.own(subject), by_group=False))


def on_layout(subject: Subject, name: str) -> Finding:
    case = cases.layout(subject, name)
    if case is None:
        return Finding(None, f"no input of this model can be {name}")
    return judge(subject, case)


def in_dtype(subject: Subject, dtype: torch.dtype) -> Finding:
    """The inputs in another type, the module as it is; a candidate may refuse them."""
    name = f"inputs in {str(dtype).removeprefix('torch.')}"
    return _or_limit(subject, name, f"refuses {name}", Act("in dtype", {"dtype": dtype}))


def under_autocast(subject: Subject) -> Finding:
    """Under torch.autocast, in bfloat16; a candidate may leave it unheeded, or refuse it."""
    return _or_limit(subject, "autocast", "refuses to run under autocast", Act("autocast"))


def _or_limit(subject: Subject, name: str, refuses: str, act: Act) -> Finding:
    """The values that eager gives; raising instead, or another type of results, is a limit."""
    case = cases.renamed(cases.own(subject), name)
    inputs = case.make(0)
    if isinstance(refused := attempted(lambda: subject.original(inputs, act)), Raised):
        return Finding(None, f"the model takes no {name}: {refused}")
    if isinstance(refused := attempted(lambda: subject.candidate(inputs, act)), Raised):
        limit = f"{refuses}, which the original does not"
        return Finding(None, f"the candidate {limit}: {refused}", limits=(limit,))
    finding = judge(subject, case, act)
    ours, theirs = subject.candidate(inputs, act), subject.original(inputs, act)
    if finding.passed is not False or structure(ours, theirs, strides=False) is None:
        return finding
    given = pytree.tree_leaves(theirs)
    if [_shape(x) for x in pytree.tree_leaves(ours)] != [_shape(x) for x in given]:
        return finding
    types = iter(given)
    cast = map_tensors(lambda x: x.to(next(types).dtype), ours)
    trial = trial_of(name, cast, theirs, attempted(lambda: subject.oracle(inputs, act)))
    wrong = trial if isinstance(trial, Finding) else conclude(name, trial)
    if wrong.passed is False:
        return wrong
    limit = f"returns another type than the original for {name}"
    return Finding(None, f"the candidate {limit}: {finding.detail}", limits=(limit,))


def _shape(value: Any) -> Any:
    return tuple(value.shape) if isinstance(value, Tensor) else None


def at_batch(subject: Subject, size: int) -> Finding:
    if not subject.resized:
        return Finding(None, "the model accepts no other batch size than its own")
    return judge(subject, cases.own(subject, size))


def at_larger_batch(subject: Subject) -> Finding:
    size = 2 * subject.batch + 1
    cost = 4 * subject.seconds * size / max(subject.batch, 1)
    if cost > LARGER_SECONDS and not subject.job.thorough:
        return Finding(None, f"batch {size} would take about {cost:.0f} s on this device")
    return at_batch(subject, size)


def in_eval_mode(subject: Subject) -> Finding:
    if not subject.training:
        return Finding(None, "the model is in eval mode already")
    with subject.mode(training=False):
        return judge(subject, cases.own(subject))


def random_numbers(subject: Subject) -> Finding:
    """Which random numbers the candidate draws, and where it leaves the generator."""
    if not subject.random:
        return Finding(None, "the model draws no random numbers in its mode")
    case = cases.own(subject)
    finding = judge(subject, case)
    if not finding.passed or statistic.draws_other_numbers(subject, case, ONCE):
        return finding
    inputs = case.make(0)
    ours = subject.candidate(inputs, Act("generator"))
    if not torch.equal(ours, subject.original(inputs, Act("generator"))):
        return Finding(
            False,
            "the candidate draws eager's numbers, but leaves the generator elsewhere: "
            "whatever is drawn after it will differ",
        )
    return replace(
        finding, detail=f"the candidate draws the very numbers of eager; {finding.detail}"
    )
