"""Memory the candidate did not write, kept too long, recognised, or wrote beside its own.

In: a Subject. Out: Findings. Fresh outputs are NaN before they are written; old ones must survive;
new data at an old address must be read, whatever was changed of it.
"""

from __future__ import annotations

import random
from typing import Any

from torch.utils import _pytree as pytree

from kernelwright.verify import cases
from kernelwright.verify.cases import Case
from kernelwright.verify.certificate import Finding
from kernelwright.verify.checks.rare import judge_each
from kernelwright.verify.compare import equal_leaves
from kernelwright.verify.inputs import Inputs, tensors_in
from kernelwright.verify.judge import attempted, judge
from kernelwright.verify.side import Raised
from kernelwright.verify.sides import Act
from kernelwright.verify.subject import Subject

REPEATS = 6
SETS, FEWEST_HELD, MOST_HELD = 6, 12, 120
HELD_SECONDS, HELD_BYTES = 3.0, 1 << 27
REALLOCATED = 12
CHANGES = 4
FRESH = 17  # a draw that no other check has


def poisoned(subject: Subject) -> Finding:
    """New inputs, with every new tensor and freed block full of NaN."""
    name = f"fresh inputs at batch {subject.small}"
    case = Case(name, lambda draw: subject.draw(subject.small, FRESH + draw))
    return judge(subject, case, Act("poisoned"))


def reallocated(subject: Subject) -> Finding:
    """New tensors in the memory of ones that were given up, which may have the same identity."""
    case = cases.together(cases.own(subject), REALLOCATED, FRESH)
    return judge(subject, cases.renamed(case, "tensors that come and go"), Act("reallocated"))


def earlier_outputs(subject: Subject) -> Finding:
    """Results that are held while later calls are made, and looked at only then."""
    case = cases.together(cases.own(subject), FEWEST_HELD, FRESH)
    if subject.random or subject.reference.volatile:
        name = f"{FEWEST_HELD} results held to the end"
        return judge(subject, cases.renamed(case, name), Act("held"))
    inputs = Inputs(case.make(0).args[:SETS], {})
    eager = subject.original(inputs, Act("held"))
    chance = random.Random(subject.job.number("held"))
    order = [chance.randrange(SETS) for _ in range(_affordable(subject, eager))]
    ours = attempted(lambda: subject.candidate(inputs, Act("held", {"order": order})))
    if isinstance(ours, Raised):
        return Finding(False, f"in {len(order)} calls the candidate raised {ours}")
    single = Case("results held to the end", lambda draw: inputs.args[draw])
    return judge_each(subject, single, eager, ours, order, ["held"] * len(order))


def _affordable(subject: Subject, eager: Any) -> int:
    """How many results can be held: a ring of buffers may be long."""
    each = subject.reference.ran / SETS + subject.longer
    size = sum(x.numel() * x.element_size() for x in tensors_in(eager)) / SETS
    wanted = min(MOST_HELD, HELD_SECONDS / max(each, 1e-9), HELD_BYTES / max(size, 1.0))
    return max(FEWEST_HELD, int(wanted))


def beside(subject: Subject) -> Finding:
    """Bands around the inputs and the weights, and on a GPU blocks around the results."""
    case = cases.renamed(cases.own(subject), "inputs and weights between bands")
    names = [*subject.names.parameters, *subject.names.buffers]
    return judge(subject, case, Act("guarded", {"names": names}))


def repeats(subject: Subject) -> Finding:
    """Equal bits from equal inputs."""
    if _equal_bits(subject, ours=True):
        return Finding(True, f"{REPEATS} calls gave equal bits")
    if not _equal_bits(subject, ours=False):
        return Finding(None, "neither the candidate nor eager gives equal bits when repeated")
    return Finding(False, f"{REPEATS} calls with equal inputs did not give equal bits")


def _equal_bits(subject: Subject, ours: bool) -> bool:
    """Under one seed if the model is random; else a candidate must not depend on the seed."""
    number = subject.job.number("repeats")
    seeds = [number + (0 if subject.random else i) for i in range(REPEATS)]
    run = subject.candidate if ours else subject.original
    results = run(subject.draw(subject.small, 0), Act("repeated", {"seeds": seeds}))
    leaves = [pytree.tree_leaves(x) for x in results]
    return all(equal_leaves(leaves[0], other) for other in leaves[1:])
