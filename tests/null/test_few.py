"""Products of few rows: which have kernels of their own, and how a file asks for them."""

from __future__ import annotations

import checking
import pytest
import torch
from torch import nn
from written import Written

from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.problem import problem_from_module
from kernelwright.targets.sm_90 import ROUNDED, SPLIT


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
        ({}, [128]),
        ({"precision": "high"}, [128]),
        ({"precision": "medium"}, [128]),
        ({"dtype": torch.bfloat16}, []),
        ({"dtype": torch.float16}, []),
        ({"rows": (30, 3)}, [128]),
        ({"rows": (30, 129)}, []),
    ],
)
def test_who_has_the_kernel(options: dict[str, object], expected: list[int]) -> None:
    compiled = of(64, 32, **options)  # type: ignore[arg-type]
    assert most(compiled) == expected
    assert ("few_rows" in compiled.source) == bool(expected)


def test_a_weight_that_the_cache_does_not_hold_is_read_once() -> None:
    assert most(of(2048, 4096)) == [16] and most(of(2049, 4096)) == [8]


def test_a_small_weight_has_more_rows() -> None:
    found = [most(of(columns, 256)) for columns in (512, 1024, 1025, 2048, 4096, 8192)]
    assert found == [[128], [64], [56], [32], [16], [16]]


def test_rows_that_no_vector_divides_are_the_librarys() -> None:
    assert most(of(64, 30)) == []


def test_the_call_and_the_launcher() -> None:
    compiled = of(8192, 64)
    assert "if _KW_GENERATED_GEMM and batch <= 32:" in compiled.source
    assert "_KW_GENERATED_GEMM = True" in compiled.source
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
    said = "a kernel of its own for up to 128 rows"
    assert any(str(step.why).endswith(said) for step in compiled.planned.library)


def thin_of(compiled: Compiled) -> tuple[tuple[int, int], ...]:
    found = [region.thin for region in compiled.planned.library if region.thin]
    return found[0].parts if found else ()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, True),
        ({"precision": "high"}, False),  # the library's TF32 product is faster there
        ({"dtype": torch.float16}, False),
        ({"rows": (30, 200)}, True),
        ({"rows": (30, 300)}, False),
    ],
)
def test_who_has_a_thin_product(options: dict[str, object], expected: bool) -> None:
    compiled = of(1024, 1024, **options)  # type: ignore[arg-type]
    assert bool(thin_of(compiled)) == expected
    assert ("kw::thin_product" in compiled.source) == expected


def test_small_weights_and_rows_that_no_copy_divides_have_no_thin_product() -> None:
    assert not thin_of(of(1024, 1020)) and not thin_of(of(2048, 1026))


def test_a_thin_product_at_the_precision_of_tf32() -> None:
    assert ROUNDED.thin is not None and ROUNDED.thin.pays(8192, 8192)
    assert ROUNDED.thin.most == 64


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "parts"),
    [
        (128, 8192, 8192, 2),  # 32 pairs of blocks for 66 places
        (256, 8192, 8192, 1),  # 64
        (64, 4096, 4096, 4),
        (64, 32768, 32768, 1),  # two whole waves
        (64, 1024, 64, 1),  # a step is not cut
    ],
)
def test_parts_fill_the_machine(rows: int, columns: int, depth: int, parts: int) -> None:
    assert SPLIT.thin is not None
    assert SPLIT.thin.parts(rows, columns, depth) == parts


def test_rows_of_equal_parts_are_one_way() -> None:
    assert thin_of(of(4096, 1024)) == ((128, 4), (256, 2))
    assert thin_of(of(2048, 1024)) == ((64, 4), (128, 8), (256, 4))


# Microseconds on an H200 (benchmarks/results/nvidia-h200-few-rows.md).
@pytest.mark.parametrize(
    ("rows", "columns", "depth", "measured"),
    [
        (16, 8192, 8192, 75),
        (128, 8192, 8192, 105),
        (255, 8192, 8192, 188),
        (64, 4096, 4096, 31),
        (128, 4096, 4096, 35),
        (255, 4096, 11008, 131),
    ],
)
def test_the_model_of_its_time(rows: int, columns: int, depth: int, measured: float) -> None:
    assert SPLIT.thin is not None
    assert abs(SPLIT.thin.time(rows, columns, depth) / measured - 1) < 0.15


def test_the_ways_of_a_product_in_their_order() -> None:
    text = of(4096, 1024).source
    ways = [
        "if _KW_GENERATED_GEMM and batch <= 16:",
        "elif _KW_GENERATED_GEMM and batch <= 128 and _kw_capability(device) == (9, 0):",
        "elif _KW_GENERATED_GEMM and batch <= 256 and _kw_capability(device) == (9, 0):",
    ]
    places = [text.index(way) for way in ways]
    assert places == sorted(places)
    assert "sums = _kw_empty((4, batch, 4096), torch.float32, device)" in text
    assert "sums = _kw_empty((2, batch, 4096), torch.float32, device)" in text
    launcher = text[text.index('extern "C" int launch_linear_thin') :]
    fields = ["2]),  // bias", "7]),  // out", "3]),  // left_halves", "6]),  // right_scales"]
    assert all(f"tensors[{field}" in launcher for field in fields)


def test_a_frozen_weight_is_multiplied_by_the_generated_product_sooner() -> None:
    text = of(4096, 4096).source
    assert 'and batch >= (192 if "linear.weight" in kept else 257)' in text


def test_the_ledger_names_the_thin_product() -> None:
    said = "one on tensor cores that reads the weight once for up to 256"
    assert any(str(step.why).endswith(said) for step in of(1024, 1024).planned.library)
