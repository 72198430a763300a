"""The candidate's weights are the original's, and stay live: no copy of them is kept from a call.

In: a Subject. Out: Findings on state_dict, and on results after the weights were changed, in all
the ways in which people change, copy, store and cast them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kernelwright.problem import describe
from kernelwright.verify import cases, weights
from kernelwright.verify.certificate import Finding
from kernelwright.verify.compare import same_bits
from kernelwright.verify.judge import attempted, judge
from kernelwright.verify.parameters import State
from kernelwright.verify.side import Raised
from kernelwright.verify.sides import Act
from kernelwright.verify.subject import Subject
from kernelwright.verify.tally import Variation, eager_accepts

Change = Callable[[weights.Names, State, int], State]


def state_dict(subject: Subject) -> Finding:
    """Same keys in the same order, same initial values, strict loading both ways."""
    theirs, ours = subject.reference.about["state_dict"], subject.about["state_dict"]
    if (difference := first_difference(theirs, ours)) is not None:
        return Finding(False, difference)
    for side, state, way in (
        (subject.reference.side, ours, "from ModelNew into Model"),
        (subject.side, theirs, "from Model into ModelNew"),
    ):
        told = attempted(lambda: side.ask("load strictly", state=state))  # noqa: B023
        if isinstance(told, Raised):
            return Finding(False, f"load_state_dict {way} raised {told}")
    subject.set_state(subject.state)
    return Finding(True, f"{len(theirs)} tensors of the same names and values, loaded both ways")


def first_difference(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str | None:
    """How two freshly built modules differ in their state_dict, in one sentence."""
    if list(theirs) != list(ours):
        missing = [k for k in theirs if k not in ours]
        extra = [k for k in ours if k not in theirs]
        if not missing and not extra:
            return f"the keys are in another order: {list(ours)} instead of {list(theirs)}"
        return f"the keys differ: missing {missing}, unexpected {extra}"
    for name, value in theirs.items():
        other = ours[name]
        if not isinstance(value, Tensor) or not isinstance(other, Tensor):
            continue
        if other.shape != value.shape or other.dtype != value.dtype:
            return f"{name} is {describe(other)} instead of {describe(value)}"
        if not same_bits(other, value):
            return f"{name} has other initial values than Model's under the same seed"
    return None


def after_change(subject: Subject, way: str, change: Change = weights.scaled) -> Finding:
    """Other weights, given in a way that people have, after a first call."""
    if not subject.state:
        return Finding(None, "the model has no parameters")
    if change is weights.other_buffers and not _floating_buffers(subject):
        return Finding(None, "the model has no floating buffers")
    if change is weights.other_buffers and subject.training:
        with subject.mode(training=False):
            return _after_change(subject, way, change)
    return _after_change(subject, way, change)


def assigned(subject: Subject) -> Finding:
    """Other tensors in the place of the old ones, and the old ones again, after a first call."""
    if not subject.state:
        return Finding(None, "the model has no parameters")
    attempted(lambda: subject.candidate(subject.draw(subject.small, 0)))
    case = cases.renamed(cases.own(subject), "the model with other tensors assigned")
    return judge(subject, case, Act("assigned"))


def _floating_buffers(subject: Subject) -> bool:
    return any(subject.state[name].is_floating_point() for name in subject.names.buffers)


def _after_change(subject: Subject, way: str, change: Change) -> Finding:
    before = subject.state
    subject.candidate(subject.draw(subject.small, 0))
    state = change(subject.names, before, subject.job.number("other weights", way))
    subject.set_reference_state(state)
    subject.give(subject.side, state, way)
    try:
        return judge(subject, cases.own(subject))
    finally:
        if subject.side.running and subject.reference.side.running:
            subject.set_state(before)


def after_optimizer_step(subject: Subject) -> Finding:
    """New weights from a step of SGD after the first call, its gradients given."""
    if not subject.names.parameters:
        return Finding(None, "the model has no parameters")
    before = subject.state
    subject.candidate(subject.draw(subject.small, 0))
    subject.side.ask("step")
    subject.set_reference_state(subject.reference.side.ask("step")["state"])
    try:
        return judge(subject, cases.own(subject))
    finally:
        if subject.side.running and subject.reference.side.running:
            subject.set_state(before)


def in_copy(subject: Subject, how: str) -> Finding:
    """A copy that was made after the first call, with weights of its own."""
    subject.candidate(subject.draw(subject.small, 0))
    try:
        with subject.candidate_instead("duplicate", how=how):
            return after_change(subject, ".data")
    except Raised as error:
        theirs = attempted(lambda: subject.reference.side.ask("duplicate", how=how))
        if isinstance(theirs, Raised):
            return Finding(None, f"the original cannot be copied by {how}: {theirs}")
        subject.reference.side.ask("back")
        return Finding(False, f"a copy of the candidate by {how} raised {error}")


def moved(subject: Subject) -> Finding:
    """`.to()` another memory format, and on a GPU to the CPU and back, after the first call."""
    if not subject.names.parameters:
        return Finding(None, "the model has no parameters")
    case = replace(cases.renamed(cases.own(subject), "weights that were moved"), strides=False)
    return judge(subject, case, Act("moved"))


def cast(subject: Subject, dtype: torch.dtype) -> Finding:
    """`.double()` or `.half()` after the first call, and back."""
    name = f"a call in {str(dtype).removeprefix('torch.')} between two others"
    case, act = cases.renamed(cases.own(subject), name), Act("cast", {"dtype": dtype})
    if not eager_accepts(subject, Variation(case, act)):
        return Finding(None, f"eager does not run in {dtype}")
    return judge(subject, case, act)


def switched(subject: Subject) -> Finding:
    """`.eval()` and `.train()` to and fro, each followed by a call."""
    case = cases.renamed(cases.own(subject), "calls in eval and train mode")
    return judge(subject, case, Act("switched"))
