"""Calls that stay with ATen: equal ones are one, masks of constants are none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from written import planned

from kernelwright import interpret
from kernelwright.pipeline import Compiled


def calls(compiled: Compiled) -> list[str]:
    return [r.call.target.split(".")[-2] for r in compiled.planned.regions if r.call is not None]


def test_equal_calls_are_one() -> None:
    compiled = planned(lambda self, x: torch.cumsum(x, 1).exp() + torch.cumsum(x, 1).sin(), 6, 8)
    assert calls(compiled) == ["cumsum"]
    assert [r.fate for r in compiled.ledger if r.op == "cumsum"] == ["aten", "aten"]


def test_calls_of_other_arguments_are_not() -> None:
    compiled = planned(lambda self, x: torch.cumsum(x, 1).exp() + torch.cumsum(x, 0), 6, 8)
    assert calls(compiled) == ["cumsum", "cumsum"]


def test_random_calls_are_not() -> None:
    compiled = planned(lambda self, x: torch.bernoulli(x) - torch.bernoulli(x), 6, 8)
    assert calls(compiled) == ["bernoulli", "bernoulli"]


def test_results_keep_memory_of_their_own() -> None:
    compiled = planned(lambda self, x: (torch.cumsum(x, 1), torch.cumsum(x, 1)), 6, 8)
    assert calls(compiled) == ["cumsum", "cumsum"]


MASKS: dict[str, Callable[..., Any]] = {
    "lower": lambda self, x: torch.exp(x.tril()),
    "below the diagonal": lambda self, x: torch.exp(x.tril(-1)),
    "upper": lambda self, x: torch.exp(x.triu(2)),
    "a causal mask": lambda self, x: torch.softmax(
        x.masked_fill(~torch.ones(8, 8, dtype=torch.bool).tril(), float("-inf")), -1
    ),
}


@pytest.mark.parametrize("name", MASKS)
def test_triangles_are_maps(name: str) -> None:
    compiled = planned(MASKS[name], 3, 8, 8)
    assert len(compiled.planned.regions) == 1 and not calls(compiled)
    x = torch.randn(5, 8, 8, dtype=torch.float64)
    got, _ = interpret.run(compiled.primitives, compiled.problem.module, (x,))
    torch.testing.assert_close(got, MASKS[name](None, x))
