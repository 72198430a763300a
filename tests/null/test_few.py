"""Products of a few rows: which have a kernel of their own, and how a file asks for it."""

from __future__ import annotations

import checking
import pytest
import torch
from torch import nn
from written import Written

from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.problem import problem_from_module


def of(
    columns: int,
    depth: int,
    *,
    rows: tuple[int, ...] = (30,),
    precision: str = "highest",
    dtype: torch.dtype = torch.float32,
    bias: bool = True,
) -> Compiled:
    linear = nn.Linear(depth, columns, bias=bias)
    module = Written(lambda self, x: self.linear(x), linear=linear).to(dtype)
    x = torch.randn(*rows, depth, dtype=dtype)
    return compile_problem(problem_from_module(module, (x,), precision), target="cuda")


def most(compiled: Compiled) -> list[int]:
    return [region.few for region in compiled.planned.library if region.few]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [16]),
        ({"precision": "high"}, [16]),
        ({"precision": "medium"}, [16]),
        ({"dtype": torch.bfloat16}, []),
        ({"dtype": torch.float16}, []),
        ({"rows": (30, 3)}, [16]),
        ({"rows": (30, 17)}, []),
    ],
)
def test_who_has_the_kernel(options: dict[str, object], expected: list[int]) -> None:
    compiled = of(64, 32, **options)  # type: ignore[arg-type]
    assert most(compiled) == expected
    assert ("few_rows" in compiled.source) == bool(expected)


def test_a_weight_that_the_cache_does_not_hold_is_read_once() -> None:
    assert most(of(2048, 4096)) == [16] and most(of(2049, 4096)) == [8]


def test_rows_that_no_vector_divides_are_the_librarys() -> None:
    assert most(of(64, 30)) == []


def test_the_call_and_the_launcher() -> None:
    compiled = of(8192, 64)
    assert "if GENERATED_GEMM and batch <= 16:" in compiled.source
    assert "GENERATED_GEMM = True" in compiled.source
    text = checking.programs(compiled)
    launcher = text[text.index('extern "C" int launch_linear_few_rows') :]
    assert "tensors[2]),  // bias" in launcher and "tensors[3]),  // out" in launcher
    assert "kw::few_rows<false>(g, on)" in launcher
    assert "[x, linear_weight, linear_bias, linear]" in compiled.source


def test_narrow_products_share_the_depth_and_may_have_no_bias() -> None:
    launcher = of(8191, 64, bias=False).source
    assert "nullptr,  // bias" in launcher and "tensors[2]),  // out" in launcher
    assert "kw::few_rows<true>(g, on)" in launcher


def test_the_ledger_says_so() -> None:
    compiled = of(64, 32, precision="high")
    said = "a kernel of its own for up to 16 rows"
    assert any(str(step.why).endswith(said) for step in compiled.planned.library)
