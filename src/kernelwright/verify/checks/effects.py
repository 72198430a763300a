"""What a call leaves behind: inputs, weights, attributes, aliases and the process are eager's.

In: a Subject. Out: Findings. The original is the measure here too: where it writes to its input,
its running statistics, its attributes or a setting of torch, so must the candidate.
"""

from __future__ import annotations

from dataclasses import replace

from kernelwright.verify import cases
from kernelwright.verify.certificate import Finding
from kernelwright.verify.compare import same_bits
from kernelwright.verify.judge import judge
from kernelwright.verify.sides import Act
from kernelwright.verify.subject import Subject

STEPS = 3
CALLS = 3


def side_effects(subject: Subject) -> Finding:
    """Inputs and parameters, bit by bit, after one call of each."""
    inputs = cases.own(subject).make(0)
    ours = subject.candidate(inputs, Act("effects"))
    theirs = subject.original(inputs, Act("effects"))
    for name, value in theirs.items():
        if name in ours and not same_bits(ours[name], value):
            return Finding(False, f"{name} was changed by the call")
    return Finding(True, "inputs and parameters are bit for bit what they were")


def aliasing(subject: Subject) -> Finding:
    """Outputs share memory with inputs, weights and each other where the original's do."""
    inputs = cases.own(subject).make(0)
    ours = subject.candidate(inputs, Act("aliases"))
    theirs = subject.original(inputs, Act("aliases"))
    for name, value in theirs.items():
        if ours.get(name) != value:
            return Finding(False, f"{name} is {ours.get(name)} instead of {value}")
    return Finding(True, "; ".join(f"{k}: {v}" for k, v in theirs.items()) or "no outputs")


def buffers(subject: Subject) -> Finding:
    """Running statistics after a few training steps, and the outputs in eval mode after them."""
    names = list(subject.names.buffers)
    if not names:
        return Finding(None, "the model has no buffers")
    before = subject.state
    act = Act("steps", {"names": names})
    case = cases.together(cases.distribution(subject, "normal"), STEPS)
    case = cases.renamed(case, f"the buffers after {STEPS} training steps")
    with subject.mode(training=True):
        finding = judge(subject, case, act)
        ended = subject.original(case.make(0), act)
    if not finding.passed:
        return finding
    subject.set_state({**before, **dict(zip(names, ended.values(), strict=True))})
    with subject.mode(training=False):
        in_eval = judge(subject, cases.own(subject))
    subject.set_state(before)
    return finding if in_eval.passed else in_eval


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
