"""Emitted texts of one problem in, the median time of each out: how tune.py compares tiles.

The models share a copy of the problem's module, so that whatever their forwards write is not the
user's. They take turns on the same inputs with a flushed cache, as the variants of bench() do.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch
from torch import nn

from kernelwright.bench import runner
from kernelwright.bench.clock import make_clock
from kernelwright.bench.context import matmul_precision, quiet_warnings
from kernelwright.bench.inputs import InputSets, make_sets
from kernelwright.bench.variants import Variant, brief, prepare_candidate
from kernelwright.failures import build_failure
from kernelwright.live import instantiate
from kernelwright.problem import Problem
from kernelwright.toolchain import check_toolchain
from kernelwright.verify.candidate import fallbacks_of

SECONDS = 1.0
WARMUPS = 6
Time = float | str  # milliseconds, or why there are none


def measure(problem: Problem, sources: Sequence[str]) -> list[Time]:
    """The median time of each text's ModelNew; all but the first must also be right."""
    check_toolchain(problem.device.type)
    own = replace(problem, module=copy.deepcopy(problem.module))
    gpus = [problem.device] if problem.device.type == "cuda" else []
    with (
        matmul_precision(problem.precision),
        torch.no_grad(),
        quiet_warnings(),
        torch.random.fork_rng(gpus),
    ):
        models = _build(own, sources)
        clock = make_clock(problem.device)
        sets = make_sets(problem.inputs, None, clock.flush_bytes, problem.kwargs)
        ready = [_ready(str(i), own, model, sets) for i, model in enumerate(models)]
        variants = [v for v in ready if isinstance(v, Variant)]
        timings = runner.measure([*variants], clock, SECONDS, lambda name, summary: None)
    medians = {t.name: t.median_ms for t in timings if t.median_ms is not None}
    return [medians[r.name] if isinstance(r, Variant) else r for r in ready]


def _build(problem: Problem, sources: Sequence[str]) -> list[nn.Module | str]:
    """Compilers are processes of their own, so threads are enough to run them side by side."""

    def build(source: str) -> nn.Module | str:
        try:
            return instantiate(problem, source)
        except Exception as error:
            lines = (build_failure(error) or "").splitlines()
            refused = next((line for line in lines if "error:" in line), None)
            return f"it does not build: {refused}" if refused else brief(error)

    with ThreadPoolExecutor(min(len(sources), os.cpu_count() or 1)) as pool:
        return list(pool.map(build, sources))


def _ready(name: str, problem: Problem, model: nn.Module | str, sets: InputSets) -> Variant | str:
    """The model, warm, if its kernels run and it is as right as the first one."""
    if isinstance(model, str):
        return model
    try:
        variant = prepare_candidate(name, model, sets, WARMUPS)
    except Exception as error:
        return brief(error)
    if fell_back := list(fallbacks_of(model) or ()):
        return f"it runs the original forward: {fell_back[0]}"
    found = runner.check(problem, model, sets[:1]) if name != "0" else []
    return next((f.detail for f in found if f.passed is False), variant)
