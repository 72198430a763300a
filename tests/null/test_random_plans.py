"""Random models: the planned programs compute what the model computes, in float64, at any batch."""

from __future__ import annotations

import copy

import pytest
import torch
from program_interpreter import run_plan
from random_models import random_model

from kernelwright import spec
from kernelwright.capture import capture
from kernelwright.expand import expand
from kernelwright.pattern import rewrite
from kernelwright.plan import ALWAYS, limits_of, plan, return_biases, seat, ways
from kernelwright.problem import problem_from_module
from kernelwright.rules import ALL_RULES
from kernelwright.targets import CPU, SM_90


@pytest.mark.parametrize("seed", range(80))
def test_the_plan_of_a_random_model_computes_the_model(seed: int) -> None:
    model, x = random_model(seed)
    captured = capture(problem_from_module(model, (x,)))
    rewritten, _ = rewrite(captured, ALL_RULES)
    primitives = expand(rewritten)
    spec.check_graph(primitives, "expand")
    target = SM_90 if seed % 2 else CPU
    products = ways(primitives, target, "highest", x.shape[0], ALWAYS)
    planned = return_biases(seat(plan(primitives, limits_of(target)), products))
    spec.check_plan(planned)
    oracle = copy.deepcopy(model).double()
    for batch in (5, 1, 3):
        inputs = torch.randn(batch, *x.shape[1:], dtype=torch.float64)
        with torch.no_grad():
            expected = oracle(inputs)
            got = run_plan(planned, oracle, (inputs,), block_n=64)
        assert got.shape == expected.shape
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)
