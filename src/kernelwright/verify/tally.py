"""Many variations of one thing, told as one finding: the first that is wrong, or the worst one.

In: variations, each a case and a call. Out: a Finding that counts them. A check has only so much
time; what it leaves out for want of it, it says.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

from kernelwright.verify.cases import Case
from kernelwright.verify.certificate import Finding
from kernelwright.verify.inputs import Call, forward
from kernelwright.verify.judge import attempted, judge
from kernelwright.verify.subject import Subject

SECONDS = 4.0


@dataclass(frozen=True)
class Variation:
    """One of them; an `optional` one says nothing where eager does not accept it."""

    case: Case
    call: Call = forward
    optional: bool = False


class Tally:
    """Findings as they come in, until one is wrong or the time is over."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self.deadline = time.monotonic() + seconds
        self.tried = 0
        self.passed: list[Finding] = []
        self.wrong: Finding | None = None
        self.reason: str | None = None
        self.left_out = 0

    @property
    def over(self) -> bool:
        late = time.monotonic() > self.deadline and self.tried > 0
        return late or self.wrong is not None

    def add(self, finding: Finding) -> None:
        self.tried += 1
        if finding.passed is False:
            self.wrong = finding
        elif finding.passed:
            self.passed.append(finding)
        else:
            self.reason = finding.detail

    def finding(self, noun: str, nothing: str) -> Finding:
        """`noun` names what was varied, in the plural; `nothing` says why nothing was."""
        if self.wrong is not None:
            return self.wrong
        if not self.passed:
            return Finding(None, (self.reason or nothing) + self._left_out)
        worst = max(self.passed, key=_ratio)
        told = f"{len(self.passed)} {noun}; the worst: {worst.detail}{self._left_out}"
        return replace(worst, detail=told)

    @property
    def _left_out(self) -> str:
        return f"; {self.left_out} more were left out for want of time" if self.left_out else ""


def judge_all(
    subject: Subject, variations: Iterable[Variation], noun: str, nothing: str
) -> Finding:
    """Every variation in turn, behind a first call of the candidate."""
    tally = Tally()
    attempted(lambda: subject.run_candidate(subject.draw(subject.small, 0)))
    for variation in variations:
        if tally.over:
            tally.left_out += tally.wrong is None
        elif not variation.optional or eager_accepts(subject, variation):
            tally.add(judge(subject, variation.case, variation.call))
        else:
            tally.tried += 1
    return tally.finding(noun, nothing)


def eager_accepts(subject: Subject, variation: Variation) -> bool:
    ran = attempted(lambda: subject.run(subject.original, variation.case.make(0), variation.call))
    return not isinstance(ran, Exception)


def _ratio(finding: Finding) -> float:
    return (finding.error or 0.0) / finding.allowed if finding.allowed else 0.0
