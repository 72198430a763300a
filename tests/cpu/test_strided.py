"""Rows that lie side by side: more than a thread takes abreast, and what is left of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import checking
import pytest
import torch
from torch import Tensor, nn
from written import Written

from kernelwright.pipeline import compile_problem
from kernelwright.plan import ALWAYS
from kernelwright.problem import problem_from_module

# Rows, or runs of them, of 2 x 32 vectors of 16 and 7 more, two of which are whole ones. Elements
# are blocks of 16, blocks of these, and some; or fewer than one.
CASES: dict[str, tuple[Callable[[Any, Tensor], Any], tuple[int, ...]]] = {
    "one reading": (lambda m, x: (x.sum(0), x.amax(0) * x.amin(0)), (300, 1063)),
    "two readings": (lambda m, x: x.std(0) * x.amax(0), (300, 1063)),
    "elements are stored": (lambda m, x: torch.softmax(x, 0) * x.amax(0), (530, 1063)),
    "runs": (lambda m, x: torch.logsumexp(x * 2, 1), (3, 45, 1063)),
    "runs, stored": (lambda m, x: torch.softmax(x, 1) + x.mean(1, keepdim=True), (3, 45, 1063)),
    "a block": (lambda m, x: torch.tanh(x).prod(1), (3, 33, 1063)),
    "fewer rows than lanes": (lambda m, x: x.std(0) + x.amax(0), (300, 11)),
    "batch norm in training": (lambda m, x: torch.relu(m.norm(x)), (300, 1063)),
}


@pytest.mark.parametrize("case", CASES)
def test_rows_side_by_side(case: str, extensions: Path) -> None:
    forward, shape = CASES[case]
    norm = {"norm": nn.BatchNorm1d(1063)} if "norm" in case else {}
    module = Written(forward, **norm).train()
    x = torch.randn(*shape)
    problem = problem_from_module(module, (x,))
    made = compile_problem(problem, target="cpu", policy=ALWAYS)
    assert "strided" in {kernel.config.shape for kernel in made.kernels}
    fast, oracle = made.instantiate(), copy.deepcopy(module).double()
    strange = x.clone()
    strange[1, 5], strange[2, 7], strange[0, 9] = torch.nan, torch.inf, -torch.inf
    for what, y in enumerate((x, x[:17].clone(), x * 1e3 + 5e4, strange)):
        values = (checking.run(f, (y,)) for f in (fast, module))
        checking.check_close(str(what), *values, checking.run(oracle, (y.double(),)))
    assert not fast.fallbacks


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_equal_bits_by_any_number_of_threads(threads: int, extensions: Path) -> None:
    """Each row has an order of its own, whoever takes it."""
    forward, shape = CASES["two readings"]
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(3))
    problem = problem_from_module(Written(forward), (x,))
    fast = compile_problem(problem, target="cpu", policy=ALWAYS).instantiate()
    before = torch.get_num_threads()
    alone = fast(x)
    torch.set_num_threads(threads)
    try:
        assert torch.equal(fast(x), alone)
    finally:
        torch.set_num_threads(before)
