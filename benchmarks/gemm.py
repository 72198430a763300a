"""The generated GEMM alone: a bare Linear, emitted, against F.linear at the same setting.

For each shape M x N x K and each precision: milliseconds on the GPU (the cache flushed, inputs
rotated, variants in turns, medians), TFLOP/s, the part of the measured ceiling, the ratio to cuBLAS
and the ratio of the two errors against float64. A ceiling is the best rate that cuBLAS reaches on a
large product of the type that the tensor cores really multiply: a third of float16's for `highest`,
which takes three, and float16's for `high` where the generated product runs, else TF32's.
"""

from __future__ import annotations

import argparse
import functools
import math
import sys
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from measuring import (
    ROUNDS,
    SETTINGS,
    arguments,
    build,
    compiled_for,
    complain_of_fallbacks,
    in_turns,
    kernel_clock,
    path_taken,
    published,
    shape_text,
    shapes_of,
)
from sheet import Sheet
from torch import Tensor, nn

from kernelwright.bench.clock import Clock
from kernelwright.bench.context import matmul_precision, quiet_warnings
from kernelwright.bench.inputs import make_sets
from kernelwright.bench.variants import Variant, direct
from kernelwright.pipeline import Compiled
from kernelwright.problem import resolve_device

SHAPES = (
    "128x8192x8192,1024x8192x8192,4096x8192x8192,4096x4096x4096,1024x1024x4096,"
    "1024x16384x2048,1024x1000x1000"
)
CEILING_SHAPES = "1024x8192x8192,4096x8192x8192,8192x8192x8192"
CHECKED_ROWS = 64
Record = dict[str, Any]
COLUMNS = (
    *("shape MxNxK", "precision", "path", "ours ms", "frozen ms", "cuBLAS ms"),
    *("TFLOP/s", "% of ceiling", "over cuBLAS", "error ratio"),
)


@dataclass(frozen=True)
class Case:
    """One shape at one precision, compiled."""

    shape: tuple[int, ...]
    precision: str
    module: nn.Linear
    compiled: Compiled


def make_case(shape: tuple[int, ...], precision: str, device: torch.device) -> Case:
    rows, columns, depth = shape
    dtype = SETTINGS[precision].dtype
    module = nn.Linear(depth, columns, device=device, dtype=dtype)
    return Case(shape, precision, module, compiled_for(module, rows, depth, precision))


def measured(
    case: Case, ceilings: dict[str, float], clock: Clock, rounds: int
) -> tuple[list[str], Record]:
    """One row of the table, as text and as numbers."""
    rows, columns, depth = case.shape
    weight, bias = case.module.weight, case.module.bias
    x = torch.rand(rows, depth, device=weight.device).to(weight.dtype)
    sets = make_sets((x,), None, clock.flush_bytes)
    ours = case.compiled.instantiate()
    path = path_taken(ours, x)
    library = functools.partial(F.linear, weight=weight, bias=bias)
    variants = [direct("ours", ours, sets), direct("cuBLAS", library, sets)]
    if path == "generated" and hasattr(ours, "freeze"):
        frozen: Any = case.compiled.instantiate()
        variants.append(direct("frozen", frozen.freeze(), sets))
    ms = {name: times.ms for name, times in in_turns(variants, clock, rounds).items()}
    ratio = max(error_ratio(ours(x), library(x), x, case.module) for (x,), _ in (sets[0], sets[-1]))
    complain_of_fallbacks(ours, shape_text(case.shape))
    rate = 2 * rows * columns * depth / ms["ours"] / 1e9
    machine, products = multiplied(case.precision, path)
    ceiling = ceilings[machine] / products
    record = {
        "shape": case.shape,
        "precision": case.precision,
        "path": path,
        "ms": ms,
        "tflops": rate,
        "ceiling_tflops": ceiling,
        "over_cublas": ms["cuBLAS"] / ms["ours"],
        "error_ratio": ratio,
    }
    cells = [shape_text(case.shape), case.precision, path, f"{ms['ours']:.4f}"]
    cells += [f"{ms['frozen']:.4f}" if "frozen" in ms else "-", f"{ms['cuBLAS']:.4f}"]
    cells += [f"{rate:.1f}", f"{100 * rate / ceiling:.1f}"]
    return [*cells, f"{record['over_cublas']:.3f}x", f"{ratio:.2f}"], record


def error_ratio(ours: Tensor, theirs: Tensor, x: Tensor, module: nn.Linear) -> float:
    """The rms error of ours over that of theirs, against float64, on rows from first to last."""
    count = min(CHECKED_ROWS, x.shape[0])
    rows = torch.linspace(0, x.shape[0] - 1, count, device=x.device).round().long()
    exact = F.linear(x[rows].double(), module.weight.double(), module.bias.double())
    mine, other = (float((y[rows].double() - exact).norm()) for y in (ours, theirs))
    return mine / other if other else math.inf if mine else 1.0


def multiplied(precision: str, path: str) -> tuple[str, int]:
    """The type of the products on the tensor cores, and how many of them one product takes."""
    if precision == "highest":
        return "float16", 3
    return ("float16" if precision == "high" and path == "generated" else precision), 1


def fill_ceilings(sheet: Sheet, options: argparse.Namespace, clock: Clock) -> dict[str, float]:
    """TFLOP/s that no product can exceed by much: cuBLAS at its best, for each type."""
    types = {multiplied(p, path)[0] for p in options.precisions for path in ("generated", "")}
    device = resolve_device(options.device)
    rates = {
        t: max(_library_rate(t, shape, clock, device) for shape in options.ceiling_shapes)
        for t in SETTINGS
        if t in types
    }
    for name, rate in rates.items():
        sheet.add(
            ("TF32" if name == "high" else name, f"{rate:.1f}"), {"type": name, "tflops": rate}
        )
    return rates


def _library_rate(
    precision: str, shape: tuple[int, ...], clock: Clock, device: torch.device
) -> float:
    rows, columns, depth = shape
    setting = SETTINGS[precision]
    left = torch.rand(rows, depth, device=device).to(setting.dtype)
    right = nn.Linear(depth, columns, bias=False, device=device, dtype=setting.dtype).weight
    call = functools.partial(F.linear, left, right)
    with matmul_precision(setting.matmul):
        times = in_turns([Variant("cuBLAS", (call, call))], clock, rounds=10)["cuBLAS"]
    return 2 * rows * columns * depth / times.ms / 1e9


def _arguments() -> argparse.Namespace:
    parser = arguments(__doc__, "gemm", list(SETTINGS))
    parser.add_argument("--shapes", type=shapes_of(3), default=SHAPES, metavar="MxNxK,...")
    parser.add_argument(
        "--ceiling-shapes", type=shapes_of(3), default=CEILING_SHAPES, metavar="MxNxK,..."
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    return parser.parse_args()


def main() -> int:
    options = _arguments()
    device = resolve_device(options.device)
    clock = kernel_clock(device)
    sheet = Sheet("A Linear alone (TFLOP/s, ceiling and ratios are those of ours)", COLUMNS)
    ceiling = Sheet("Ceilings: cuBLAS at its best", ("type", "TFLOP/s"))
    with torch.no_grad(), quiet_warnings():
        wanted = [(shape, p) for p in options.precisions for shape in options.shapes]
        cases = [make_case(shape, precision, device) for shape, precision in wanted]
        build(case.compiled.source for case in cases)
        with published(options, device, "The generated GEMM", sheet, ceiling):
            ceilings = fill_ceilings(ceiling, options, clock)
            for case in cases:
                with matmul_precision(SETTINGS[case.precision].matmul):
                    sheet.add(*measured(case, ceilings, clock, options.rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
