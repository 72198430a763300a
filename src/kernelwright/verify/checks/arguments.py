"""Arguments of forward that the file's inputs do not give, or give as plain values.

In: a Subject. Out: a Finding. The process of the original lists the ways to call it and makes the
inputs of each; where eager raises, so must the candidate.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from kernelwright.verify.cases import Case
from kernelwright.verify.certificate import Finding
from kernelwright.verify.inputs import Inputs
from kernelwright.verify.subject import Subject
from kernelwright.verify.tally import Variation, judge_all


def defaults(subject: Subject) -> Finding:
    """Every parameter that has a default, or was given as a plain value."""
    return judge_all(
        subject,
        _variations(subject),
        "ways to call forward",
        "forward can be called in no other way than with the file's inputs",
    )


def _variations(subject: Subject) -> Iterator[Variation]:
    inputs = subject.draw(subject.small, 0)
    listed = subject.reference.side.ask("list", what="arguments", inputs=inputs)["value"]
    for index, way in enumerate(listed):
        case = Case(way["label"], partial(_make, subject, index), must_raise=True)
        yield Variation(case, optional=way["optional"])


def _make(subject: Subject, index: int, draw: int) -> Inputs:
    made: Inputs = subject.reference.side.ask(
        "argue",
        index=index,
        inputs=subject.draw(subject.small, draw),
        seed=subject.job.number("arguments", index, draw),
    )["value"]
    return made
