"""Which kernel of an emitted file is to blame for a failed check.

In: a Subject and the inputs that it failed on. Out: a sentence, or None where nothing can be said.
The file's steps are run one by one in the candidate's process (acts/inside.py), and what each of
them stores is held against the same value of the original in float64, as the outputs are. The first
step that is wrong got right values: it is the smallest part that does not work. It is a hint for
whoever mends it, and no evidence: a verdict never depends on it.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from kernelwright.verify.acts.inside import TORCH
from kernelwright.verify.certificate import Finding
from kernelwright.verify.inputs import Inputs, Named
from kernelwright.verify.judge import Trial, conclude, trial_of
from kernelwright.verify.side import Broken
from kernelwright.verify.sides import Act
from kernelwright.verify.subject import Subject

PLAINLY = 10.0  # times what is allowed: one draw is enough to say so
NAME = 80  # characters
MOST = 3  # failures that are looked into


def blamed(subject: Subject, inputs: Inputs) -> str | None:
    """The sentence, for a candidate with steps of ours, and for its first few failures."""
    if subject.blamed >= MOST:
        return None
    subject.blamed += 1
    try:
        found = subject.candidate(inputs, Act("inside"))
        steps = [(str(step)[:NAME], list(names)) for step, names in found["steps"]]
        values = {str(k): v for k, v in found["values"].items() if isinstance(v, Tensor)}
        side = subject.reference.side
        exact = side.ask("inside", inputs=inputs, names=list(values))["value"]
        if not exact:
            return None
        return first_wrong(steps, values, exact)
    except Broken:
        subject.restart()
        return None
    except Exception:  # what is told of steps may be anything
        return None


def first_wrong(
    steps: list[tuple[str, list[str]]], values: dict[str, Tensor], exact: dict[str, Any]
) -> str | None:
    """The first step, in running order, that stored something wrong."""
    worst: tuple[float, str] = (1.0, "")
    for step, names in steps:
        for name in (n for n in names if n in values and n in exact):
            ratio, detail = _judged(name, values[name], exact[name])
            what = f"torch's call for {name}" if step == TORCH else f"the kernel {step}"
            told = f"the first step that is wrong is {what}: {detail}"
            if ratio > PLAINLY:
                return told
            worst = max(worst, (ratio, told))
    if worst[1]:
        return worst[1]
    return "every kernel by itself is right on these inputs" if steps else None


def _judged(name: str, ours: Tensor, pairs: list[list[Tensor]]) -> tuple[float, str]:
    """How many times over what is allowed a value is, by what it may stand for at best."""
    found: list[tuple[float, str]] = []
    for plain, wide in pairs:
        if ours.shape == plain.shape and ours.dtype == plain.dtype:
            trial = trial_of("these inputs", *(Named({name: x}) for x in (ours, plain, wide)))
            if isinstance(trial, Trial):
                found.append((trial.ratio, _detail(conclude("these inputs", trial))))
            else:
                found.append((float("inf"), _detail(trial)))
    return min(found, default=(0.0, ""))


def _detail(finding: Finding) -> str:
    return finding.detail.removeprefix("on these inputs ")
