"""Generated products: who sits in an epilogue, that its two parts make the whole, and why not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import checking
import pytest
import torch
import torch.nn.functional as F
from program_interpreter import run_plan
from torch import Tensor, nn
from written import Written, planned, refusal_codes

from kernelwright.lower import GemmKernel
from kernelwright.lower.gemm import tile_for
from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.plan import ALWAYS, WHERE_IT_PAYS, Policy, needs_whole_tiles
from kernelwright.plan.reasons import Code
from kernelwright.problem import load_problem, problem_from_module
from kernelwright.targets import Loop
from kernelwright.targets.sm_90 import BFLOAT16, ROUNDED, SPLIT

# A sum over a product's outputs is a law's: no product is left (rules/sums.py).
WITHOUT = ("dropout_soft", "linear_divide_sum", "linear_sum_max", "linear_mean_of")
LINEAR_MODELS = [
    p for p in checking.MODELS if "linear" in p.stem and not any(w in p.stem for w in WITHOUT)
]
WIDTHS = (64, 128)


def generated(compiled: Compiled) -> list[GemmKernel]:
    return [k for k in compiled.kernels if isinstance(k, GemmKernel)]


def in_parts(compiled: Compiled, x: Tensor, width: int) -> Any:
    module = copy.deepcopy(compiled.problem.module).double()
    return run_plan(compiled.planned, module, (x.double(),), width)


def check_parts(compiled: Compiled, x: Tensor, width: int) -> None:
    exact = copy.deepcopy(compiled.problem.module).double()(x.double())
    got = in_parts(compiled, x, width)
    torch.testing.assert_close(got, exact, equal_nan=True)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("path", LINEAR_MODELS, ids=checking.name_of)
def test_two_parts_make_the_whole(path: Path, width: int) -> None:
    """In float64 the tiles and what follows give what the model gives, for any width of tile."""
    compiled = compile_problem(load_problem(path, "cpu"), target="cuda", policy=ALWAYS)
    assert generated(compiled)
    x = compiled.problem.inputs[0]
    with torch.no_grad():
        check_parts(compiled, torch.randn(x.shape), width)


TAILS: dict[str, tuple[Callable[..., Any], int]] = {
    "elements": (lambda self, x: F.mish(self.linear(x)), 0),
    "a residual": (lambda self, x: torch.relu(self.linear(x)) + x, 0),
    "no bias": (lambda self, x: torch.relu(F.linear(x, self.linear.weight)), 0),
    "a transposed result": (lambda self, x: (self.linear(x) * 2).t().contiguous(), 0),
    "segments": (lambda self, x: F.hardtanh(self.norm(self.linear(x))), 0),
    "rows": (lambda self, x: self.linear(x).amin(dim=1) * 3, 1),
    "three of a row": (
        lambda self, x: (lambda y: (y.sum(1), y.amax(1) + 1, y.prod(1)))(self.linear(x)),
        3,
    ),
    "segments and rows": (lambda self, x: self.norm(self.linear(x)).amin(1, keepdim=True), 1),
    "elements and rows": (
        lambda self, x: (lambda y: (y, y.amin(1)))(self.norm(self.linear(x))),
        1,
    ),
    "logsumexp": (lambda self, x: torch.logsumexp(self.linear(x), 1), 2),
    "logsumexp and sum": (
        lambda self, x: (lambda y: (y.sum(1), F.gelu(torch.logsumexp(y, 1))))(self.linear(x)),
        3,
    ),
    "rank three": (lambda self, x: torch.relu(self.linear(x.view(-1, 2, 256))).amax(-1), 1),
}


def tail(name: str) -> Compiled:
    function, _ = TAILS[name]
    width = 512 if name == "rank three" else 256
    parts = {"linear": nn.Linear(256, 256), "norm": nn.GroupNorm(16, 256)}
    return planned(function, 30, width, **parts)


@pytest.mark.parametrize("name", TAILS)
def test_what_fits_an_epilogue(name: str) -> None:
    compiled = tail(name)
    (kernel,) = generated(compiled)
    (region,) = compiled.planned.regions
    assert region.why.code is Code.GEMM and not compiled.planned.refusals
    assert len(kernel.partials) == TAILS[name][1]
    assert region.launches == (2 if kernel.partials else 1) == len(compiled.kernels) - 1
    assert kernel.gemm.product not in kernel.reads
    for width in WIDTHS:
        with torch.no_grad():
            check_parts(compiled, torch.randn(compiled.problem.inputs[0].shape), width)


def test_logsumexp_of_tiles_without_a_finite_value() -> None:
    """A tile of -inf alone has no shift of its own, and must add nothing to the others."""
    compiled = planned(lambda self, x: torch.logsumexp(F.linear(x, self.weight), 1), 4, 192,
                       weight=nn.Parameter(torch.eye(192)))  # fmt: skip
    (kernel,) = generated(compiled)
    assert kernel.by_tile
    minus, plus = float("-inf"), float("inf")
    x = torch.full((5, 192), minus)
    x[0, 64:] = -300.0
    x[1, :64] = -300.0
    x[2, 5], x[2, 80] = plus, 7.0
    x[3, 3] = float("nan")
    (region,) = compiled.planned.regions
    values = {"x": x.double()}
    got = _of_product(compiled, values["x"])
    torch.testing.assert_close(got, torch.logsumexp(values["x"], 1), equal_nan=True)
    assert needs_whole_tiles(region.program) if region.program else False


def _of_product(compiled: Compiled, product: Tensor) -> Tensor:
    """Run the two parts on a product that is given, since 0 * inf would spoil a real one."""
    from kernelwright import interpret

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpret, "resolve", lambda target: lambda x, weight, bias: product)
        return in_parts(compiled, product.float(), 64)


OBSTACLES: dict[str, tuple[Callable[..., Any], Code]] = {
    "softmax": (lambda self, x: torch.softmax(self.linear(x), 1), Code.WHOLE_ROW),
    "layer norm": (lambda self, x: F.layer_norm(self.linear(x), (96,)), Code.WHOLE_ROW),
    "ragged logsumexp": (lambda self, x: torch.logsumexp(self.linear(x), 1), Code.WHOLE_ROW),
    "narrow groups": (lambda self, x: F.group_norm(self.linear(x), 24), Code.SEGMENTS),
    "groups of 48": (lambda self, x: F.group_norm(self.linear(x), 2), Code.SEGMENTS),
    "over the batch": (lambda self, x: self.linear(x).sum(0), Code.WALKS),
    "outer axis": (lambda self, x: self.linear(x).view(-1, 4, 24).sum(1), Code.WALKS),
    "its own transpose": (
        lambda self, x: (lambda y: y.view(-1, 8, 12) + y.view(-1, 12, 8).transpose(1, 2))(
            self.linear(x)
        ),
        Code.WALKS,
    ),
    "a result": (lambda self, x: (lambda y: (y, torch.relu(y)))(self.bare(x)), Code.SHARED),
    "two products": (
        lambda self, x: torch.relu(self.linear(x)) * torch.tanh(self.bare(x)),
        Code.SECOND,
    ),
}


@pytest.mark.parametrize("name", OBSTACLES)
def test_what_does_not_fit_is_stored_with_a_reason(name: str) -> None:
    function, code = OBSTACLES[name]
    parts = {"linear": nn.Linear(32, 96), "bare": nn.Linear(32, 96, bias=False)}
    compiled = planned(function, 30, 32, **parts)
    assert refusal_codes(compiled) == [code]
    (refusal,) = compiled.planned.refusals
    assert refusal.op == "linear" and "linear stores its product" in str(refusal.why)
    alone = [r for r in compiled.planned.regions if r.why.code is Code.GEMM_ALONE]
    assert len(alone) == 1
    with torch.no_grad():
        check_parts(compiled, torch.randn(30, 32), 64)


def test_a_bare_linear_adds_its_bias_itself() -> None:
    compiled = planned(lambda self, x: self.linear(x), 30, 32, linear=nn.Linear(32, 77))
    (kernel,) = generated(compiled)
    assert kernel.reads == ["linear_bias"] and not compiled.planned.refusals
    with torch.no_grad():
        check_parts(compiled, torch.randn(30, 32), 64)


def of_type(dtype: torch.dtype, depth: int, columns: int, policy: Policy = ALWAYS) -> Compiled:
    module = Written(lambda self, x: torch.relu(self.linear(x)), linear=nn.Linear(depth, columns))
    problem = problem_from_module(module.to(dtype), (torch.randn(30, depth, dtype=dtype),))
    return compile_problem(problem, target="cuda", policy=policy)


def test_half_types_need_aligned_rows() -> None:
    (kernel,) = generated(of_type(torch.bfloat16, 64, 40))
    assert kernel.gemm.loop.name == "bfloat16" and not kernel.splits
    assert of_type(torch.float16, 64, 40).kernels[0].name == "linear_relu"
    compiled = of_type(torch.float16, 36, 40)
    assert refusal_codes(compiled) == [Code.STRIDES] and not generated(compiled)


def test_few_columns_stay_with_the_library() -> None:
    assert refusal_codes(of_type(torch.float32, 64, 3)) == [Code.NARROW]


def test_precision_chooses_the_loop() -> None:
    before = torch.get_float32_matmul_precision()
    names = {}
    for precision in ("highest", "high", "medium"):
        torch.set_float32_matmul_precision(precision)
        (kernel,) = generated(of_type(torch.float32, 65, 40))
        names[precision] = kernel.gemm.loop.name
    torch.set_float32_matmul_precision(before)
    assert names == {"highest": "split", "high": "rounded", "medium": "rounded"}


def test_the_cpu_has_none() -> None:
    compiled = planned(lambda self, x: F.mish(self.linear(x)), 30, 32, target="cpu",
                       linear=nn.Linear(32, 96))  # fmt: skip
    assert [r.kind for r in compiled.planned.regions] == ["contract", "rowwise"]


# ---- the ledger and the tiles ------------------------------------------------------------------


def test_the_ledger_names_the_product() -> None:
    compiled = tail("segments and rows")
    assert [(row.op, row.fate, row.where) for row in compiled.ledger] == [
        ("linear", "fused", "linear_group_norm_amin"),
        ("group_norm", "fused", "linear_group_norm_amin"),
        ("amin", "fused", "linear_group_norm_amin"),
    ]
    assert all("generated product" in row.why for row in compiled.ledger)


@pytest.mark.parametrize(
    ("columns", "groups", "dtype", "width"),
    [
        (8192, 512, torch.float32, 128),
        (8192, 256, torch.bfloat16, 256),
        (1000, 25, torch.bfloat16, None),
        (960, 10, torch.bfloat16, 192),
        (128, 8, torch.float32, 64),
    ],
)
def test_tiles_hold_whole_groups(
    columns: int, groups: int, dtype: torch.dtype, width: int | None
) -> None:
    module = Written(
        lambda self, x: self.norm(self.linear(x)),
        linear=nn.Linear(8, columns),
        norm=nn.GroupNorm(groups, columns),
    ).to(dtype)
    problem = problem_from_module(module, (torch.randn(1024, 8, dtype=dtype),))
    compiled = compile_problem(problem, target="cuda", policy=ALWAYS)
    (kernel,) = generated(compiled)
    if width is None:
        assert refusal_codes(compiled) == [Code.SEGMENTS]
        return
    assert tile_for(kernel.gemm, kernel.program).columns == width
    constants = dict(kernel.config.constants)
    assert constants["kBlockN"] == width and width % (columns // groups) == 0
    planes = max(1, kernel.gemm.loop.planes)
    assert constants["kStages"] * (128 + width) * 128 * planes <= 200 << 10
    assert constants["kCluster"] == (2 if -(-columns // width) % 2 == 0 else 1)


@pytest.mark.parametrize(
    ("dtype", "columns", "vec"),
    [
        (torch.float32, 76, 4),
        (torch.float32, 78, 2),
        (torch.float32, 77, 1),
        (torch.bfloat16, 80, 2),  # is not split, so it cannot be interleaved
    ],
)
def test_how_many_neighbours_a_thread_has(dtype: torch.dtype, columns: int, vec: int) -> None:
    (kernel,) = generated(of_type(dtype, 16, columns))
    assert dict(kernel.config.constants)["kVec"] == vec


@pytest.mark.parametrize(("groups", "vec"), [(8, 2), (4, 4)])
def test_four_neighbours_need_segments_of_sixteen(groups: int, vec: int) -> None:
    module = Written(
        lambda self, x: self.norm(self.linear(x)),
        linear=nn.Linear(8, 64),
        norm=nn.GroupNorm(groups, 64),
    )
    compiled = compile_problem(
        problem_from_module(module, (torch.randn(30, 8),)), target="cuda", policy=ALWAYS
    )
    (kernel,) = generated(compiled)
    assert dict(kernel.config.constants)["kVec"] == vec
    assert (
        f"kw::split_all<2, kw::hopper::Major::kDepth, {str(vec == 4).lower()}, 8>"
        in compiled.source
    )


# Where a generated product beat the library on an H200 (benchmarks/results/nvidia-h200-ways.md).
@pytest.mark.parametrize(
    ("loop", "columns", "depth", "slower", "faster"),
    [
        (SPLIT, 8192, 8192, 64, 128),
        (SPLIT, 4096, 4096, 64, 256),
        (SPLIT, 1024, 4096, 128, 512),
        (SPLIT, 16384, 2048, 64, 128),
        (SPLIT, 1000, 1000, 128, 512),
        (ROUNDED, 8192, 8192, 512, 1024),
        (ROUNDED, 4096, 4096, 512, 2048),
        (ROUNDED, 16384, 2048, 512, 2048),
        (ROUNDED, 1024, 4096, 16384, None),
        (ROUNDED, 1000, 1000, 16384, None),
        (BFLOAT16, 8192, 8192, 16384, None),
        (BFLOAT16, 1024, 4096, 16384, None),
        (BFLOAT16, 1000, 1000, 16384, None),
    ],
)
def test_the_library_has_the_small_products(
    loop: Loop, columns: int, depth: int, slower: int, faster: int | None
) -> None:
    """Where no thin product comes between them, as for weights that are frozen."""
    fewest = loop.fewest(1024, columns, depth, thin=False)
    assert fewest is None or slower < fewest
    assert faster is None or (fewest is not None and fewest <= faster)


def test_a_thin_product_comes_before_the_generated_one() -> None:
    """8192 x 8192 at 256 rows: 188 us against 285 (nvidia-h200-few-rows.md and -ways.md)."""
    assert SPLIT.fewest(1024, 8192, 8192) == 257
    assert SPLIT.fewest(1024, 8192, 8192, each=512) == SPLIT.fewest(
        1024, 8192, 8192, each=512, thin=False
    )


def test_a_product_that_never_pays_is_refused() -> None:
    compiled = of_type(torch.bfloat16, 64, 64, WHERE_IT_PAYS)
    assert not generated(compiled)
    assert any("which is faster at 64 x 64" in r for r in compiled.refusals)
