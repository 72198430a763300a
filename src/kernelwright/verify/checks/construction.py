"""Models constructed otherwise than the one that was compiled: other arguments, another seed.

In: a Subject. Out: Findings. A constant of the first instance, be it an argument of the constructor
or a tensor that was drawn there, must not be a constant of the next one.
"""

from __future__ import annotations

from typing import Any

from kernelwright.verify import cases
from kernelwright.verify.certificate import Finding
from kernelwright.verify.inputs import Inputs
from kernelwright.verify.judge import attempted, judge
from kernelwright.verify.side import Raised
from kernelwright.verify.subject import Subject
from kernelwright.verify.tally import Tally

FIXED = "the module cannot be constructed again"


def other_arguments(subject: Subject) -> Finding:
    """The constructor's arguments, one at a time, where Model accepts them and still runs."""
    if not isinstance(subject.reference.arguments, Inputs):
        return Finding(None, FIXED)
    inputs = subject.draw(subject.small, 0)
    listed = subject.reference.side.ask("list", what="constructions", inputs=inputs)["value"]
    tally = Tally(subject)
    for arguments in listed:
        if tally.over:
            tally.left_out += tally.wrong is None
        else:
            tally.add(_with_arguments(subject, arguments))
    return tally.finding(
        "other ways to construct it", "Model runs with no other arguments than the file's"
    )


def _with_arguments(subject: Subject, arguments: Inputs) -> Finding:
    told = _told(arguments)
    seed = subject.job.number("construction") % 2**31
    request = {"arguments": arguments, "seed": seed, "training": subject.training}
    try:
        with subject.constructed(arguments, seed) as theirs:
            ran = attempted(lambda: subject.original(subject.draw(subject.small, 0)))
            if isinstance(ran, Raised):
                return Finding(None, f"Model({told}) does not run on the file's inputs")
            return _candidate_with(subject, request, theirs, told)
    except Raised as error:
        return Finding(None, f"Model({told}) raises {error}")


def _candidate_with(
    subject: Subject, request: dict[str, Any], theirs: dict[str, Any], told: str
) -> Finding:
    try:
        with subject.candidate_instead("construct", **request, unseen=True):
            subject.side.ask("load strictly", state=theirs["state_dict"])
            return judge(subject, cases.renamed(cases.own(subject), f"ModelNew({told})"))
    except Raised as error:
        return Finding(False, f"Model({told}) runs, but ModelNew({told}) raises {error}")


def _told(arguments: Inputs) -> str:
    named = [f"{name}={value!r}" for name, value in arguments.kwargs.items()]
    return ", ".join([*(repr(value) for value in arguments.args), *named])
