"""More than 2^31 elements in one tensor: does every index have 64 bits?

In: a Subject. Out: a Finding. The candidate runs at a batch so large that the largest tensor of the
call has more elements than an int can count; chosen rows of its result are judged against the
reference on the few rows that were repeated. That holds for models that treat rows apart.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from torch.utils import _pytree as pytree

from kernelwright.verify.cases import Case
from kernelwright.verify.certificate import Finding
from kernelwright.verify.inputs import Inputs, tensors_in
from kernelwright.verify.judge import Trial, attempted, conclude, settle, structure, trial_of
from kernelwright.verify.processes import available_memory
from kernelwright.verify.side import Raised
from kernelwright.verify.sides import Act
from kernelwright.verify.subject import Subject

ELEMENTS = 1 << 31
GIVEN = 37  # rows, a prime: no power of two is a multiple of it
CHOSEN = 256
SHARE = 0.8  # of the free memory that may be taken
DRAW = 900


def huge(subject: Subject) -> Finding:
    """Rows from all over a result that is computed of so many."""
    case = Case(f"{GIVEN} rows", lambda draw: subject.draw(GIVEN, DRAW + draw))
    if (why := _not_by_rows(subject, case)) is not None:
        return Finding(None, why)
    needs = subject.original(case.make(0), Act("footprint"))
    batch = -(-ELEMENTS * GIVEN // max(int(needs["largest"]), 1)) + GIVEN
    wanted = int(needs["bytes"]) * batch // GIVEN
    free = int(needs["free"]) if subject.device.type == "cuda" else available_memory()
    if wanted > SHARE * free:
        told = f"{batch} rows would take about {wanted >> 30} GB of memory, of {free >> 30} free"
        return Finding(None, told)
    return _judged(subject, case, batch)


def _not_by_rows(subject: Subject, case: Case) -> str | None:
    """Why rows cannot be judged one by one, if so: each must be what it is among others."""
    if not subject.resized:
        return "the model accepts no other batch size than its own"
    if subject.random or subject.reference.volatile:
        return "the model has state or random numbers, so that its rows cannot be told apart"
    whole = attempted(lambda: subject.original(case.make(0)))
    if isinstance(whole, Raised):
        return f"eager raises on {case.name}: {whole}"
    if any(x.shape[:1] != (GIVEN,) for x in tensors_in(whole)):
        return "the model's results have other rows than its inputs"
    some = _some_rows(subject, case.make(0))
    among = subject.original(case.make(0), _of(range(GIVEN // 2)))
    alone = trial_of("some of the rows", among, subject.original(some), subject.oracle(some))
    if isinstance(alone, Trial) and conclude("some of the rows", alone).passed:
        return None
    return "the rows of the model's results depend on each other"


def _some_rows(subject: Subject, inputs: Inputs) -> Inputs:
    leaves, tree = pytree.tree_flatten(inputs)
    for index in subject.resized:
        leaves[index] = leaves[index][: GIVEN // 2].clone()
    some: Inputs = pytree.tree_unflatten(leaves, tree)
    return some


def _judged(subject: Subject, case: Case, batch: int) -> Finding:
    rows = _rows(subject, batch)
    many = {"batch": batch, "resized": sorted(subject.resized), "rows": rows}
    ours = attempted(lambda: subject.candidate(case.make(0), Act("of many rows", many)))
    if isinstance(ours, Raised):
        short_of = "out of memory" in str(ours).lower()
        return Finding(None if short_of else False, f"on {batch} rows the candidate raised {ours}")
    name = f"{len(rows)} of {batch} rows, with {ELEMENTS} elements and more in a tensor"
    few = _of(row % GIVEN for row in rows)
    theirs, exact = subject.original(case.make(0), few), subject.oracle(case.make(0), few)
    if (wrong := structure(ours, theirs, strides=False)) is not None:
        return Finding(False, f"on {name} {wrong}")
    trial = trial_of(name, ours, theirs, exact)
    if isinstance(trial, Finding):
        return trial
    return conclude(name, settle(subject, case, 0, few, trial))


def _of(rows: Iterable[int]) -> Act:
    return Act("of rows", {"rows": list(rows)})


def _rows(subject: Subject, batch: int) -> list[int]:
    """The first and the last, those around half of it, and others as the seed has it."""
    chance = random.Random(subject.job.number("rows of many"))
    near = [0, 1, batch // 2 - 1, batch // 2, batch // 2 + 1, batch - 2, batch - 1]
    return [*near, *(chance.randrange(batch) for _ in range(CHOSEN - len(near)))]
