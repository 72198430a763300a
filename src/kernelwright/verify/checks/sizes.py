"""Sizes on both sides of every threshold that a model may compare them with.

In: a Subject. Out: Findings. A trace follows one branch of `if x.shape[0] > 4`; so batches up to 9
and around 16, 32, 64 and 128 are tried, every other dimension one larger, one smaller and by half,
and inputs of one dimension more and one less.
Where eager raises, a candidate may take more; that is no evidence, nor is it a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from torch import Tensor
from torch.utils import _pytree as pytree

from kernelwright.verify import cases
from kernelwright.verify.cases import Case
from kernelwright.verify.certificate import Finding
from kernelwright.verify.inputs import Inputs, seeded, with_size
from kernelwright.verify.judge import judge
from kernelwright.verify.subject import Subject
from kernelwright.verify.tally import Tally, Variation, eager_accepts, judge_all

BATCHES = (*range(1, 10), 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129)

Place = tuple[int, int]  # the number of an input, and one of its dimensions


def batches(subject: Subject) -> Finding:
    """Batch sizes around small thresholds."""
    if not subject.resized:
        return Finding(None, "the model accepts no other batch size than its own")
    own = [Variation(cases.own(subject, size)) for size in BATCHES]
    return judge_all(subject, own, "batch sizes", "eager accepts no other batch size")


def other_dimensions(subject: Subject) -> Finding:
    """Other sizes of the dimensions that are not the batch, in one input and in all alike."""
    return judge_all(
        subject,
        _variations(subject),
        "sizes of other dimensions",
        "the inputs have no other dimension than the batch",
    )


def other_ranks(subject: Subject) -> Finding:
    """The batch in two dimensions, and a single row without one: what eager makes of it.

    Kernels are written for a number of dimensions; one that gives something else has a limit.
    """
    if not subject.resized:
        return Finding(None, "the model accepts no other batch size than its own")
    tally = Tally(subject)
    for name, change in RANKS.items():
        case = Case(f"inputs with {name}", partial(_ranked, subject, change))
        if tally.over or not eager_accepts(subject, Variation(case)):
            continue
        finding = judge(subject, case)
        if finding.passed is False:
            tally.limits[name] = f"does not take inputs with {name} as the original does"
        else:
            tally.add(finding)
    return tally.finding("numbers of dimensions", "eager accepts no other number of dimensions")


RANKS: dict[str, Callable[[Tensor], Tensor]] = {
    "two dimensions for the batch": lambda x: x[:4].reshape(2, 2, *x.shape[1:]).clone(),
    "no dimension for the batch": lambda x: x[0].clone(),
}


def _ranked(subject: Subject, change: Callable[[Tensor], Tensor], draw: int) -> Inputs:
    leaves, tree = pytree.tree_flatten(subject.draw(4, draw))
    for index in subject.resized:
        leaves[index] = change(leaves[index])
    ranked: Inputs = pytree.tree_unflatten(leaves, tree)
    return ranked


def _variations(subject: Subject) -> Iterator[Variation]:
    leaves = pytree.tree_leaves(subject.draw(subject.small, 0))
    places = [
        (index, dim)
        for index, x in enumerate(leaves)
        if isinstance(x, Tensor)
        for dim in range(x.ndim)
        if dim or index not in subject.resized
    ]
    groups = [[place] for place in places]
    for size in dict.fromkeys(leaves[i].shape[d] for i, d in places):
        alike = [(i, d) for i, d in places if leaves[i].shape[d] == size]
        if len(alike) > 1:
            groups.append(alike)
    for group in groups:
        index, dim = group[0]
        size = leaves[index].shape[dim]
        for other in dict.fromkeys((size + 1, size - 1, size // 2)):
            if other > 0 and other != size:
                yield Variation(_resized(subject, group, other))


def _resized(subject: Subject, group: list[Place], size: int) -> Case:
    def make(draw: int) -> Inputs:
        leaves, tree = pytree.tree_flatten(subject.draw(subject.small, draw))
        with seeded(subject.job.number("sizes", size, draw)):
            for index, dim in group:
                leaves[index] = with_size(leaves[index], dim, size)
        resized: Inputs = pytree.tree_unflatten(leaves, tree)
        return resized

    where = ", ".join(f"dimension {dim} of input {index}" for index, dim in group)
    return Case(f"inputs with size {size} in {where}", make)
