"""Behaviour that few calls do not show: rare faults, later calls, threads.

In: a Subject. Out: Findings. So many cheap calls are made that a fault of one call in a hundred is
seen with a probability of 99.9 %, each on inputs of a random set, in a random way. Every result
comes to the judge; equal ones are looked at once.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from torch.utils import _pytree as pytree

from kernelwright.verify import cases
from kernelwright.verify.acts.calls import WAYS
from kernelwright.verify.cases import Case
from kernelwright.verify.certificate import Finding
from kernelwright.verify.compare import equal_leaves
from kernelwright.verify.inputs import Inputs, tensors_in
from kernelwright.verify.judge import attempted, conclude, judge, settle, structure, trial_of
from kernelwright.verify.side import Raised
from kernelwright.verify.sides import ONCE, Act
from kernelwright.verify.subject import Subject

CALLS = 690  # 1 - 0.99 ** 690 = 0.999
THOROUGH_CALLS = 6900
SETS = 8
SECONDS = 4.0
MOST_BYTES = 1 << 28
THREADS = 4
COUNTS = (1, 2, 3, 5, 8)  # of threads that torch may use
ROUNDS = 8
WARMING = 3  # calls before the one that is judged
MISSED = 0.001  # the probability of missing a fault as rare as is told


def many_calls(subject: Subject) -> Finding:
    """Hundreds of calls in random order, each judged."""
    if subject.random:
        return Finding(None, "the model draws random numbers, so no two of its calls are alike")
    chance = random.Random(subject.job.number("many calls"))
    first = _act(list(range(SETS)), ["no_grad"] * SETS)
    for case in (_small_batches(subject, chance), cases.own(subject)):
        inputs = Inputs(tuple(case.make(i) for i in range(SETS)), {})
        eager = attempted(lambda: subject.original(inputs, first))  # noqa: B023
        if not isinstance(eager, Raised):
            break
    if isinstance(eager, Raised):
        return Finding(None, f"eager raises on these inputs: {eager}")
    if subject.reference.volatile:
        return Finding(None, "forward changes attributes: see `Python state`")
    calls = _affordable(subject, eager)
    order = [*range(SETS), *(chance.randrange(SETS) for _ in range(calls - SETS))]
    ways = [chance.choice(list(WAYS)) for _ in order]
    ours = attempted(lambda: subject.candidate(inputs, _act(order, ways)))
    if isinstance(ours, Raised):
        return Finding(False, f"in {calls} calls the candidate raised {ours}")
    return judge_each(subject, case, eager, ours, order, ways)


def _act(order: list[int], ways: list[str]) -> Act:
    return Act("many", {"order": order, "ways": ways})


def _small_batches(subject: Subject, chance: random.Random) -> Case:
    """Sets of a few rows each, in number as the judge likes."""
    if not subject.resized:
        return cases.own(subject)
    sizes = [chance.randint(1, min(4, max(1, subject.batch))) for _ in range(SETS)]
    return Case("a few rows", lambda draw: subject.draw(sizes[draw % SETS], 500 + draw))


def _affordable(subject: Subject, eager: Any) -> int:
    each = subject.reference.ran / SETS + subject.longer
    size = sum(x.numel() * x.element_size() for x in tensors_in(eager)) / SETS
    wanted = THOROUGH_CALLS if subject.job.thorough else CALLS
    by_time = SECONDS * (10 if subject.job.thorough else 1) / max(each, 1e-9)
    return max(SETS, min(wanted, int(by_time), int(MOST_BYTES / max(size, 1.0))))


def judge_each(
    subject: Subject, case: Case, eager: Any, ours: Any, order: list[int], ways: list[str]
) -> Finding:
    """Every result of many calls by the rule; `order` tells on which inputs, equal ones are one."""
    worst: Finding | None = None
    settled: dict[int, list[list[Any]]] = {i: [] for i in range(len(eager))}
    if not isinstance(ours, list) or len(ours) != len(order):
        return Finding(False, f"{len(order)} calls did not give as many results")
    for number, (index, result) in enumerate(zip(order, ours, strict=True), 1):
        leaves = pytree.tree_leaves(result)
        if any(equal_leaves(leaves, known) for known in settled[index]):
            continue
        where = f"call {number} of {len(order)}, on {case.name} ({ways[number - 1]})"
        if (wrong := structure(result, eager[index], False)) is not None:
            return Finding(False, f"in {where} {wrong}")
        exact = subject.oracle(case.make(index))
        trial = trial_of(where, result, eager[index], exact)
        if isinstance(trial, Finding):
            return trial
        trial = settle(subject, case, index, ONCE, trial)
        settled[index].append(leaves)
        finding = conclude(where, trial)
        if not finding.passed:
            return finding
        if worst is None or (finding.error or 0) > (worst.error or 0):
            worst = finding
    assert worst is not None
    told = f"{len(order)} calls; a fault in {_rarest(len(order)):.1%} of them would have shown"
    return replace(worst, detail=f"{told} ({1 - MISSED:.1%}); {worst.detail}")


def _rarest(calls: int) -> float:
    """The rate of a fault that so many calls miss with the probability MISSED."""
    return float(1 - MISSED ** (1 / calls))


def in_threads(subject: Subject) -> Finding:
    """Several threads at once, each on its own inputs: nothing may be shared between them."""
    if subject.random or subject.reference.volatile:
        return Finding(None, "the model has state or random numbers that threads would share")
    if subject.training and subject.names.buffers:
        return Finding(None, "in train mode the model has buffers that threads would share")
    case = cases.together(cases.own(subject), THREADS, 700)
    inputs = case.make(0)
    ours = attempted(lambda: subject.candidate(inputs, Act("in threads", {"rounds": ROUNDS})))
    if isinstance(ours, Raised):
        return Finding(False, f"in {THREADS} threads the candidate raised {ours}")
    eager = subject.original(inputs, Act("held"))
    flat = [result for results in ours for result in results]
    order = [index for index in range(THREADS) for _ in range(ROUNDS)]
    single = Case(f"{THREADS} threads", lambda draw: case.make(0).args[draw])
    return judge_each(subject, single, eager, flat, order, ["at once"] * len(order))


def with_threads(subject: Subject) -> Finding:
    """Other numbers of threads than torch has here: work is parted differently."""
    if subject.device.type != "cpu":
        return Finding(None, "the work of a call is not parted among threads of the host")
    if subject.random or subject.reference.volatile:
        return Finding(None, "the model has state or random numbers, so no two calls are alike")
    case = cases.renamed(cases.own(subject), "other numbers of threads")
    return judge(subject, case, Act("with threads", {"counts": list(COUNTS)}))


def in_another_process(subject: Subject) -> Finding:
    """A process that was started after the first one ended, with what that one left on the disk."""
    subject.start_candidate()
    inputs = subject.draw(subject.small, 0)
    for _ in range(WARMING):
        attempted(lambda: subject.candidate(inputs))
    return judge(subject, cases.renamed(cases.own(subject), "calls in a second process"))
