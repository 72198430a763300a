"""Many variations of one thing, told as one finding: the first that is wrong, or the worst one.

In: variations, each a case and an act. Out: a Finding that counts them. A check has only so much
time; what it leaves out for want of it, it says.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from torch.utils import _pytree as pytree

from kernelwright.verify.cases import Case
from kernelwright.verify.certificate import Finding
from kernelwright.verify.compare import equal_leaves
from kernelwright.verify.judge import attempted, judge
from kernelwright.verify.side import Raised
from kernelwright.verify.sides import ONCE, Act
from kernelwright.verify.subject import Subject

SECONDS = 2.0
THOROUGH, QUICK = 20.0, 0.3  # times as long
OFTEN = "calls {where} another number of times: hooks on that sublayer see it"


@dataclass(frozen=True)
class Variation:
    """One of them; an `optional` one says nothing where eager does not accept it.

    `uncounted` is the act that leaves out how often something happened.
    """

    case: Case
    act: Act = ONCE
    optional: bool = False
    uncounted: Act | None = None


class Tally:
    """Findings as they come in, until one is wrong or the time is over."""

    def __init__(self, subject: Subject) -> None:
        job = subject.job
        patience = THOROUGH if job.thorough else QUICK if job.quick else 1.0
        self.deadline = time.monotonic() + patience * SECONDS
        self.tried = 0
        self.passed: list[Finding] = []
        self.wrong: Finding | None = None
        self.reason: str | None = None
        self.limits: dict[str, str] = {}
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
        limits = tuple(dict.fromkeys(self.limits.values()))
        if limits:
            return Finding(None, f"the candidate {'; it '.join(limits)}", limits=limits)
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
    tally = Tally(subject)
    attempted(lambda: subject.candidate(subject.draw(subject.small, 0)))
    for variation in variations:
        if tally.over:
            tally.left_out += tally.wrong is None
            continue
        eager = eager_result(subject, variation) if variation.optional else None
        if isinstance(eager, Raised):
            tally.tried += 1
        else:
            tally.add(judge(subject, variation.case, variation.act, eager))
    return tally.finding(noun, nothing)


def judge_or_limit(
    subject: Subject,
    variations: Iterable[tuple[str, Variation]],
    noun: str,
    nothing: str,
    limit: str,
) -> Finding:
    """The same for changes of a part; a candidate that never looks at the part has a limit there.

    It has one if its result with the change is bit for bit its result without, or if it raises.
    """
    tally = Tally(subject)
    attempted(lambda: subject.candidate(subject.draw(subject.small, 0)))
    for where, variation in variations:
        if where in tally.limits:
            continue
        if tally.over:
            tally.left_out += tally.wrong is None
        elif not isinstance(eager := eager_result(subject, variation), Raised):
            finding = judge(subject, variation.case, variation.act, eager)
            if finding.passed is False and _is_declined(subject, variation):
                tally.limits[where] = limit.format(where=where or "itself")
            elif finding.passed is False and _is_right_uncounted(subject, variation):
                tally.limits[where] = OFTEN.format(where=where or "itself")
            else:
                tally.add(finding)
        else:
            tally.tried += 1
    return tally.finding(noun, nothing)


def _is_declined(subject: Subject, variation: Variation) -> bool:
    inputs = variation.case.make(0)
    changed = attempted(lambda: subject.candidate(inputs, variation.act))
    unchanged = attempted(lambda: subject.candidate(inputs))
    if isinstance(changed, Raised) or isinstance(unchanged, Raised):
        return isinstance(changed, Raised)
    leaves = pytree.tree_leaves(changed["the result"]), pytree.tree_leaves(unchanged)
    return equal_leaves(*leaves)


def _is_right_uncounted(subject: Subject, variation: Variation) -> bool:
    """Whether only the number of calls is another, as where a layer is called on parts of it."""
    act = variation.uncounted
    return act is not None and judge(subject, variation.case, act).passed is True


def eager_accepts(subject: Subject, variation: Variation) -> bool:
    return not isinstance(eager_result(subject, variation), Raised)


def eager_result(subject: Subject, variation: Variation) -> Any:
    """What eager gives, or Raised: a candidate is not made to run what eager does not accept."""
    return attempted(lambda: subject.original(variation.case.make(0), variation.act))


def _ratio(finding: Finding) -> float:
    return (finding.error or 0.0) / finding.allowed if finding.allowed else 0.0
