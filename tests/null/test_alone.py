"""On the CPU, what nothing fuses with stays with ATen where ATen is faster, and says so."""

from __future__ import annotations

from collections.abc import Callable

import checking
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from written import Written

from kernelwright import interpret
from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.problem import load_problem, problem_from_module

LONE: dict[str, Callable[..., Tensor]] = {
    "relu": lambda m, x: torch.relu(x),
    "gelu": lambda m, x: F.gelu(x),
    "of a view": lambda m, x: torch.tanh(x.reshape(-1)),
    "column sums": lambda m, x: x.sum(0),
    "row means": lambda m, x: x.mean(1, keepdim=True),
    "a long softmax": lambda m, x: torch.softmax(x[:, :1].expand(-1, 512), 1),
    "behind a product": lambda m, x: torch.sigmoid(x @ x.t()),
}
FUSED: dict[str, Callable[..., Tensor]] = {
    "two operators": lambda m, x: torch.relu(x) * 2,
    "softmax": lambda m, x: torch.softmax(x, 1),
    "everything": lambda m, x: x.sum(),
    "mish": lambda m, x: F.mish(x),
}


def planned(forward: Callable[..., Tensor]) -> Compiled:
    module: nn.Module = Written(forward)
    return compile_problem(problem_from_module(module, (torch.randn(64, 8),)), target="cpu")


@pytest.mark.parametrize("case", LONE)
def test_a_lone_operator_is_atens(case: str) -> None:
    compiled = planned(LONE[case])
    assert not compiled.kernels
    assert any("faster than a kernel that does nothing else" in r.why for r in compiled.ledger)
    x = torch.randn(64, 8)
    with torch.no_grad():
        assert torch.equal(compiled.instantiate()(x), LONE[case](None, x))


@pytest.mark.parametrize("case", FUSED)
def test_what_gains_is_a_kernel(case: str) -> None:
    compiled = planned(FUSED[case])
    assert compiled.kernels
    x = torch.randn(6, 8, dtype=torch.float64)
    got, _ = interpret.run(compiled.primitives, compiled.problem.module, (x,))
    torch.testing.assert_close(got, FUSED[case](None, x))


def test_an_operator_behind_a_sum_over_windows_is_planned() -> None:
    """What it read in the user's program has no name of its own any more."""
    path = next(p for p in checking.MODELS if p.stem == "conv2d_depthwise_chain")
    compiled = compile_problem(load_problem(path, "cpu"), target="cpu")
    assert compiled.kernels
