"""Random models, compiled for the CPU: as accurate as eager, without a fallback, at any batch."""

from __future__ import annotations

import copy

import checking
import pytest
import torch
from random_models import random_model

from kernelwright.live import instantiate
from kernelwright.pipeline import compile_problem
from kernelwright.plan import ALWAYS
from kernelwright.problem import problem_from_module

# Not 21: its exact result is zero, so any rounding is all of the result.
SEEDS = (0, 3, 7, 11, 16, 22, 28, 33, 41, 47, 52, 66)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_model_compiles_and_is_right(seed: int, extensions: object) -> None:
    model, x = random_model(seed)
    compiled = compile_problem(problem_from_module(model, (x,)), policy=ALWAYS)
    assert compiled.kernels
    candidate = instantiate(compiled.problem, compiled.source)
    oracle = copy.deepcopy(model).double()
    for batch in (5, 1, 9):
        inputs = torch.randn(batch, *x.shape[1:])
        ours, theirs = checking.run(candidate, (inputs,)), checking.run(model, (inputs,))
        exact = checking.run(oracle, (inputs.double(),))
        checking.check_close(f"batch {batch}", ours, theirs, exact)
    assert not candidate.fallbacks
