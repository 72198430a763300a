"""The candidate's weights are the original's, and stay live: no copy of them is kept from a call.

In: a Subject. Out: Findings on state_dict, and on results after the weights were changed, in all
the ways in which people change, copy, store and cast them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kernelwright.problem import describe
from kernelwright.verify import cases
from kernelwright.verify.certificate import Finding
from kernelwright.verify.compare import same_bits
from kernelwright.verify.judge import attempted, judge
from kernelwright.verify.side import Raised
from kernelwright.verify.sides import Act
from kernelwright.verify.subject import Subject
from kernelwright.verify.tally import Variation, eager_accepts


def named(subject: Subject) -> Finding:
    """All tensors of the original's state are there, by name and with its initial values.

    A candidate may have more of them, for a use of its own, where nobody saves or loads it.
    """
    theirs, ours = subject.reference.about["state_dict"], subject.about["state_dict"]
    both = shared(subject.reference.about, subject.about)
    if (difference := first_difference(theirs, both)) is not None:
        return Finding(False, difference)
    more = len(ours) - len(theirs)
    besides = f", and {more} of its own" if more else ""
    return Finding(True, f"{len(theirs)} tensors of the same names and values{besides}")


def shared(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """What two modules have in common of the one's state, in its order."""
    known = ours["state_dict"]
    return {name: known[name] for name in theirs["state_dict"] if name in known}


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
