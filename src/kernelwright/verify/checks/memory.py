"""Memory the candidate did not write, kept too long, or recognised by its address.

In: a Subject. Out: Findings. Fresh outputs are NaN before they are written; old ones must survive;
new data at an old address must be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from kernelwright.verify import cases
from kernelwright.verify.cases import Case
from kernelwright.verify.certificate import Finding
from kernelwright.verify.inputs import Inputs, forward, map_tensors, widen
from kernelwright.verify.judge import judge
from kernelwright.verify.subject import Subject, equal_leaves

REPEATS = 5
BLOCKS = 4
FRESH_SEED = 17


def poisoned(subject: Subject) -> Finding:
    """New inputs, candidate first, with every new tensor and freed block full of NaN."""
    outputs = subject.run(subject.original, subject.draw(subject.small, 0))
    shapes = [x for x in pytree.tree_leaves(outputs) if isinstance(x, Tensor)]

    def make(seed: int) -> Inputs:
        inputs = subject.draw(subject.small, FRESH_SEED + seed)
        _poison(shapes)
        return inputs

    with _uninitialised_is_nan():
        return judge(subject, Case(f"fresh inputs at batch {subject.small}", make))


def same_address(subject: Subject) -> Finding:
    """Other data in the very tensors of the call before."""
    case = cases.own(subject)
    earlier = case.make(FRESH_SEED)

    def call(module: nn.Module, inputs: Inputs) -> Any:
        reused = map_tensors(Tensor.clone, widen(earlier) if module is subject.oracle else earlier)
        forward(module, reused)
        _overwrite(reused, inputs)
        return forward(module, reused)

    return judge(subject, case, call)


def earlier_outputs(subject: Subject) -> Finding:
    """The result of one call must survive the next."""
    first = pytree.tree_leaves(subject.run_candidate(subject.draw(subject.small, 0)))
    kept = [x.clone() if isinstance(x, Tensor) else x for x in first]
    subject.run_candidate(subject.draw(subject.small, FRESH_SEED))
    if equal_leaves(first, kept):
        return Finding(True, "a result is unchanged by the next call")
    return Finding(False, "the second call overwrote the result of the first")


def repeats(subject: Subject) -> Finding:
    """Equal bits from equal inputs."""
    if _equal_bits(subject, ours=True):
        return Finding(True, f"{REPEATS} calls gave equal bits")
    if not _equal_bits(subject, ours=False):
        return Finding(None, "neither the candidate nor eager gives equal bits when repeated")
    return Finding(False, f"{REPEATS} calls with equal inputs did not give equal bits")


def _equal_bits(subject: Subject, ours: bool) -> bool:
    """Under one seed if the model is random; else a candidate must not depend on the seed."""
    results = []
    for repeat in range(REPEATS):
        inputs = subject.draw(subject.small, 0)
        draw = 0 if subject.random else repeat
        run = (
            subject.run_candidate(inputs, draw=draw)
            if ours
            else subject.run(subject.original, inputs, draw=draw)
        )
        results.append(pytree.tree_leaves(run))
    return all(equal_leaves(results[0], other) for other in results[1:])


def _overwrite(target: Inputs, source: Inputs) -> None:
    pairs = zip(pytree.tree_leaves(target), pytree.tree_leaves(source), strict=True)
    for old, new in pairs:
        if isinstance(old, Tensor):
            old.copy_(new)


def _poison(like: list[Tensor]) -> None:
    """Allocate and free, so that the allocator hands these blocks out again."""
    blocks = [torch.empty_like(x) for x in like for _ in range(BLOCKS)]
    for block in blocks:
        block.fill_(float("nan") if block.is_floating_point() else 1)


@contextmanager
def _uninitialised_is_nan() -> Iterator[None]:
    """torch fills empty tensors with NaN while it is asked for deterministic algorithms."""
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("warn")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)
