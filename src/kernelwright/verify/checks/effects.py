"""What a call leaves behind: inputs, weights, attributes, aliases and the process are eager's.

In: a Subject. Out: Findings. The original is the measure here too: where it writes to its input,
its running statistics, its attributes or a setting of torch, so must the candidate.
"""

from __future__ import annotations

from dataclasses import replace

from kernelwright.verify import cases
from kernelwright.verify.certificate import Finding
from kernelwright.verify.judge import judge
from kernelwright.verify.processes import printable
from kernelwright.verify.sides import Act
from kernelwright.verify.subject import Subject

STEPS = 3
CALLS = 3


def python_state(subject: Subject) -> Finding:
    """Plain attributes that forward changes, and the results that depend on them, call by call."""
    inputs = subject.draw(subject.small, 0)
    subject.original(inputs, Act("several", {"calls": CALLS, "watched": []}))
    about = subject.reference.side.ask("plain")["value"]
    ours = subject.side.ask("plain")["value"]
    moved = about["moved"]
    watched = [n for n in about["known"] if n in ours["known"] or n in moved]
    act = Act("several", {"calls": CALLS, "watched": watched})
    finding = judge(subject, cases.renamed(cases.own(subject), f"{CALLS} calls in a row"), act)
    if not finding.passed:
        return finding
    told = f"forward changes {', '.join(moved)}" if moved else "forward changes no plain attribute"
    return replace(finding, detail=f"{told}; {finding.detail}")


def global_state(subject: Subject) -> Finding:
    """Settings of torch and of Python, and the functions of both, that a call may not touch."""
    case = cases.renamed(cases.own(subject), "two calls, with gradients and without")
    finding = judge(subject, replace(case, strides=False), Act("world"))
    if not finding.passed:
        return finding
    theirs = subject.reference.side.ask("world")["value"]
    ours = [x for x in subject.side.ask("world")["value"] if x not in theirs]
    if ours:
        return Finding(False, f"the candidate has left changed: {', '.join(map(str, ours))}")
    return Finding(True, "all settings and functions are as they were before it was loaded")


def files(subject: Subject) -> Finding:
    """Calls write no files, but for those of compilers, once the first ones are over."""
    inputs = subject.draw(subject.small, 0)
    before = subject.surroundings.written()
    for _ in range(CALLS):
        subject.candidate(inputs)
    after = subject.surroundings.written()
    changed = sorted(path for path in after if before.get(path) != after[path])
    if changed:
        return Finding(False, f"a call wrote {printable(', '.join(changed[:CALLS]))}")
    return Finding(True, "the calls wrote no file to the home and the folder for temporary files")
