"""bench for live modules: in this process, on the very modules, which are as before afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from kernelwright.bench.runner import Progress, Timed, check_baselines, time_subject
from kernelwright.bench.timings import Timings
from kernelwright.errors import InputError
from kernelwright.live import adopt
from kernelwright.problem import Problem
from kernelwright.verify import parameters
from kernelwright.verify.candidate import candidate_class


def bench_live(
    problem: Problem,
    candidate: nn.Module | Path,
    *,
    batch: int | None = None,
    baselines: Sequence[str] | None = None,
    seconds: float = 3.0,
    progress: Progress | None = None,
    verify_after: bool = True,
    train: bool = False,
) -> Timings:
    """Time a module, or the ModelNew of a file over the module's own parameters, against it.

    With `train` a training step (forward, loss, backward) is timed besides; both are to be in train
    mode for that.
    """
    check_baselines(baselines)
    if isinstance(candidate, Path):
        new, name = adopt(candidate_class(candidate), problem.module), str(candidate)
    else:
        new, name = candidate, type(candidate).__name__
    if new.training != problem.training:
        raise InputError(
            "The model and the candidate are in different modes; call .eval() or .train() on both."
        )
    if train and not problem.training:
        raise InputError("A training step needs both in train mode; call .train() on them.")
    subject = Timed(problem, lambda: new, problem.name, name)
    with _untouched(problem, new):
        return time_subject(subject, batch, baselines, seconds, progress, verify_after, train)


@contextmanager
def _untouched(problem: Problem, candidate: nn.Module) -> Iterator[None]:
    """Buffers (running statistics), gradients and generators are put back."""
    tensors = [p for m in (problem.module, candidate) for p in m.parameters()]
    gradients = [p.grad for p in tensors]
    kept = [(m, parameters.snapshot_buffers(m)) for m in (problem.module, candidate)]
    for tensor in tensors:
        tensor.grad = None  # a step would add to what is there
    gpus = [problem.device] if problem.device.type == "cuda" else []
    with torch.random.fork_rng(gpus):
        try:
            yield
        finally:
            for module, buffers in kept:
                parameters.write_buffers(module, buffers)
            for tensor, gradient in zip(tensors, gradients, strict=True):
                tensor.grad = gradient
