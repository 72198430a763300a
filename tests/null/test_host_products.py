"""Which products the plan gives to the CPU's own kernels, and what it says of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.plan.reasons import Code
from kernelwright.problem import problem_from_module
from kernelwright.targets import X86_64


class Two(nn.Module):
    def __init__(self, width: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.first = nn.Linear(width, width, dtype=dtype)
        self.second = nn.Linear(width, width, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.second(torch.relu(self.first(x)) * 2)) * 2


def compiled(
    width: int,
    precision: str = "highest",
    target: str = "x86_64",
    dtype: torch.dtype = torch.float32,
) -> Compiled:
    problem = problem_from_module(
        Two(width, dtype), (torch.zeros(32, width, dtype=dtype),), precision
    )
    return compile_problem(problem, target=target)


def test_a_product_says_for_which_rows_it_has_a_kernel() -> None:
    made = compiled(640)
    products = [r for r in made.planned.regions if r.kind == "contract"]
    assert [r.why.code for r in products] == [Code.HOST] * 2
    assert "4 to 16 rows (AVX-512), 62 or more rows (AMX)" in str(products[0].why)
    assert "_has_own(batch, " in made.source
    assert '("avx512f", 4, 16), ("amx_bf16", 62, 1 << 40)' in made.source


def test_equal_products_are_one_kernel() -> None:
    (kernel,) = compiled(640).lowered.few
    assert compiled(640).source.count(f"int launch_{kernel.name}(") == 1


@pytest.mark.parametrize(
    ("width", "precision", "target", "dtype"),
    [
        (64, "highest", "x86_64", torch.float32),
        (512, "medium", "x86_64", torch.float32),
        (512, "highest", "cpu", torch.float32),
        (512, "highest", "x86_64", torch.bfloat16),
    ],
)
def test_others_stay_with_the_library(
    width: int, precision: str, target: str, dtype: torch.dtype
) -> None:
    made = compiled(width, precision, target, dtype)
    assert not made.lowered.few and not any(r.host for r in made.planned.regions)
    assert "_has_own" not in made.source and "multiply(" not in made.source


@pytest.mark.parametrize(
    ("columns", "depth", "rows", "along", "taken"),
    [
        (8192, 8192, 1, True, False),
        (8192, 8192, 2, True, True),
        (4096, 2048, 3, True, False),
        (8192, 8192, 4, True, True),
        (8192, 8192, 16, False, False),
        (8192, 8192, 17, True, True),
        (8192, 8192, 1024, False, True),
        (640, 640, 40, True, False),
        (640, 640, 62, True, True),
        (549, 5317, 133, True, False),
        (8192, 128, 512, True, False),
    ],
)
def test_few_some_and_many_rows(
    columns: int, depth: int, rows: int, along: bool, taken: bool
) -> None:
    assert X86_64.host is not None
    ways = X86_64.host.fitting(columns, depth, along)
    assert any(way.takes(rows) for way in ways) == taken
