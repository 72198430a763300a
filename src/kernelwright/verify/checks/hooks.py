"""Hooks: they are called as often, in the same order, and what they change is changed.

In: a Subject. Out: Findings. Hooks that change values and hooks that only count; after they are
removed the model is what it was. Those of the model itself must work; that a candidate does not
call its sublayers, or calls them on parts of a batch, is a limit of what was certified.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kernelwright.verify import cases
from kernelwright.verify.acts.hooks import GLOBAL, KINDS
from kernelwright.verify.cases import Case
from kernelwright.verify.certificate import Finding
from kernelwright.verify.sides import Act
from kernelwright.verify.subject import Subject
from kernelwright.verify.tally import Variation, judge_all, judge_or_limit

MODULES = 6  # sublayers that get a hook of their own


def on_the_model(subject: Subject) -> Finding:
    """Every kind of hook on the model itself, and global ones that watch it."""
    variations = [variation for _, variation in _hooked(subject, [""])]
    return judge_all(subject, variations, "hooks", "the model takes no hooks")


def on_sublayers(subject: Subject) -> Finding:
    """The same on its sublayers."""
    paths = [path for path in subject.reference.about["modules"] if path]
    shared = [path for path in paths if path in subject.about["modules"]][:MODULES]
    return judge_or_limit(
        subject,
        _hooked(subject, shared),
        "hooks on sublayers",
        "the modules have no sublayers in common",
        "does not call {where}: hooks on that sublayer are not called",
    )


def _hooked(subject: Subject, paths: list[str]) -> Iterator[tuple[str, Variation]]:
    for path in paths:
        for kind in KINDS:
            case = cases.renamed(cases.own(subject), f"the model with {kind} on {path or 'it'}")
            yield path, _variation(case, "hooked", path=path, kind=kind)
    for kind in GLOBAL:
        if paths:
            case = cases.renamed(cases.own(subject), f"the model under {kind}")
            yield paths[0], _variation(case, "observed", kind=kind, paths=paths)


def _variation(case: Case, act: str, **parameters: Any) -> Variation:
    uncounted = Act(act, {**parameters, "counted": False})
    return Variation(case, Act(act, parameters), optional=True, uncounted=uncounted)
