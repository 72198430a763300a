"""Models that compute nothing must fail: a problem on which they pass proves little.

In: a Subject. Out: a Finding whose `weak` lists every null model that passed the same comparison
that the candidate has to pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from kernelwright.verify import cases
from kernelwright.verify.certificate import Finding
from kernelwright.verify.compare import equal_leaves
from kernelwright.verify.inputs import Inputs, map_floating
from kernelwright.verify.judge import attempted, conclude, trial_of
from kernelwright.verify.side import Raised
from kernelwright.verify.sides import Act
from kernelwright.verify.subject import Subject

OTHER_SEED = 1

Null = Callable[[Subject, Inputs, Any], Any]


def null_models(subject: Subject) -> Finding:
    """Each null model through the candidate's own comparison, on the file's own inputs."""
    case = cases.own(subject)
    eager = subject.original(case.make(0))
    exact = attempted(lambda: subject.oracle(case.make(0), replay=subject.drew))
    if isinstance(exact, Raised):
        return Finding(None, f"there is no oracle to compare them with: {exact}")
    failed: list[str] = []
    weak: list[str] = []
    for name, null in NULLS.items():
        fake = null(subject, case.make(0), eager)
        if fake is None:
            continue
        trial = trial_of(case.name, fake, eager, exact)
        finding = trial if isinstance(trial, Finding) else conclude(case.name, trial)
        (weak if finding.passed else failed).append(name)
    sentences = tuple(f"A model that returns {name} passes on {case.name}." for name in weak)
    if weak:
        return Finding(None, f"the problem is weak: {', '.join(weak)} would pass", weak=sentences)
    return Finding(True, f"these fail, as they must: {', '.join(failed)}")


def _zeros(subject: Subject, inputs: Inputs, eager: Any) -> Any:
    return map_floating(torch.zeros_like, eager)


def _constant(subject: Subject, inputs: Inputs, eager: Any) -> Any:
    return map_floating(lambda x: torch.full_like(x, float(x.double().mean())), eager)


def _first_input(subject: Subject, inputs: Inputs, eager: Any) -> Any:
    """The first input in place of every output; None where its shape does not fit."""
    first = next(x for x in pytree.tree_leaves(inputs) if isinstance(x, Tensor))
    try:
        return map_floating(lambda x: first.expand_as(x).to(x.dtype), eager)
    except RuntimeError:
        return None


def _stale(subject: Subject, inputs: Inputs, eager: Any) -> Any:
    """The result of other inputs; normal ones when the file always gives the same."""
    other = subject.draw(subject.small, OTHER_SEED)
    if equal_leaves(pytree.tree_leaves(other), pytree.tree_leaves(inputs)):
        other = cases.distribution(subject, "normal").make(OTHER_SEED)
    return subject.original(other)


def _tf32(subject: Subject, inputs: Inputs, eager: Any) -> Any:
    """The original with TF32 products; None where TF32 is allowed or nothing is multiplied."""
    floats = {x.dtype for x in subject.state.values() if x.is_floating_point()}
    if subject.precision != "highest" or floats - {torch.float32} or subject.may_round:
        return None
    if not subject.original(inputs, Act("multiplies")):
        return None
    fake = subject.rounded(inputs, everywhere=True)
    same = equal_leaves(pytree.tree_leaves(fake), pytree.tree_leaves(eager))
    return None if same else fake


NULLS: dict[str, Null] = {
    "zeros": _zeros,
    "a constant": _constant,
    "its first input": _first_input,
    "a stale result": _stale,
    "TF32 products": _tf32,
}
