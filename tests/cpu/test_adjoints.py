"""Gradients by kernels for a CPU: at most twice ATen's error, and its special values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from adjoints import FAMILIES, LIKE_A_GPU, Calls, Case, compiled
from checking import check_close
from fuzzing import together
from fuzzing.compiled import adopted
from torch import Tensor
from torch.utils import _pytree as pytree

INF = float("inf")
SPECIAL = torch.tensor([float("nan"), INF, -INF, 0.0, -0.0, 3.0, -3.0, 0.5, -0.5, 1.0, -1.0])
Change = Callable[[Case, int, Tensor], Tensor]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Calls, Any]]:
    """By family, the original and its kernels, which are all in one library."""
    modules = {name: Calls(cases) for name, cases in FAMILIES.items()}
    sources = {name: compiled(module, "cpu").source for name, module in modules.items()}
    libraries = together.build(sources, tmp_path_factory.mktemp("adjoints"), "cpu", units=2)
    return {
        name: (module, adopted(together.load(sources[name], libraries[name]), module))
        for name, module in modules.items()
    }


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest, built: dict[str, tuple[Calls, Any]]) -> Any:
    return built[request.param]


def check(module: Calls, fused: Any, change: Change) -> None:
    """`change` is given each input with its case and its place there, the cotangent first."""
    inputs = [change(case, i, x) for case in module.cases for i, x in enumerate(case.inputs)]
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    ours, theirs, exact = fused(*inputs), module.exact(*inputs), module.exact(*wide)
    for case, *results in zip(module.cases, ours, theirs, exact, strict=True):
        own, eager, right = (list(pytree.tree_leaves(r)) for r in results)
        check_close(case.name, own, eager, right, laid_out=False)
    assert not fused.fallbacks


def test_errors_are_at_most_twice_those_of_eager(family: tuple[Calls, Any]) -> None:
    check(*family, lambda case, i, x: x)


@pytest.mark.parametrize("scale", [1e-30, 0.0, 1e15])
def test_cotangents_of_any_size(family: tuple[Calls, Any], scale: float) -> None:
    def scaled(case: Case, i: int, x: Tensor) -> Tensor:
        given = i == 0 and x.is_floating_point() and not case.forward
        return x * scale if given else x

    check(*family, scaled)


def test_special_values(built: dict[str, tuple[Calls, Any]]) -> None:
    def special(case: Case, i: int, x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return x
        count = len(SPECIAL)
        values = SPECIAL.repeat(count) if i == 0 else SPECIAL.repeat_interleave(count)
        if i == 1 and case.name.startswith(LIKE_A_GPU):
            values = values.nan_to_num(2.0, INF, -INF)
        return values.repeat(-(-x.numel() // len(values)))[: x.numel()].reshape(x.shape)

    check(*built["pointwise"], special)
