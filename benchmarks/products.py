"""Products of two run-time operands, emitted, against torch.matmul at the same setting.

A case is a batch, sizes M x N x K and how each operand lies (N: as torch.matmul takes it, T:
transposed in memory). For each, at each precision: milliseconds on the GPU (the cache flushed,
variants in turns, medians), the ratio to the library, who made the product, and the ratio of the
two errors against float64. Attention's products are those of a ViT-B/16 at batch 8: 96 heads of
197 tokens by 64 features.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass
from typing import Any

import torch
from measuring import (
    ROUNDS,
    SETTINGS,
    arguments,
    build,
    complain_of_fallbacks,
    in_turns,
    kernel_clock,
    published,
    shape_text,
)
from sheet import Sheet
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from kernelwright.bench.context import matmul_precision, quiet_warnings
from kernelwright.bench.inputs import make_sets
from kernelwright.bench.variants import direct
from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.problem import problem_from_module, resolve_device

COLUMNS = (
    *("operands", "batch x M x N x K", "precision", "path", "ours ms", "library ms"),
    *("over the library", "error ratio"),
)
SQUARE, HEADS = (1, 4096, 4096, 4096), 96
CASES = (
    *(("NN", SQUARE), ("NT", SQUARE), ("TN", SQUARE), ("TT", SQUARE)),
    *(("NN", (16, 1024, 1024, 1024)), ("NT", (16, 1024, 1024, 1024))),
    *(("NT", (HEADS, 197, 197, 64)), ("NN", (HEADS, 197, 197, 64))),
    *(("NN", (HEADS, 197, 64, 197)), ("TN", (HEADS, 197, 64, 197))),
    *(("NT", (HEADS, 256, 256, 64)), ("NN", (HEADS, 256, 64, 256))),
)
GENERATED = "gemm_kernel"  # in the name of the kernel


class Product(nn.Module):
    """left @ right; an operand that is transposed in memory comes as it lies."""

    def __init__(self, operands: str) -> None:
        super().__init__()
        self.operands = operands

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        left = left.mT if self.operands[0] == "T" else left
        right = right.mT if self.operands[1] == "T" else right
        return torch.matmul(left, right)


@dataclass(frozen=True)
class Case:
    """One product at one precision, compiled."""

    operands: str
    sizes: tuple[int, int, int, int]
    precision: str
    inputs: tuple[Tensor, Tensor]
    compiled: Compiled


def make_case(
    operands: str, sizes: tuple[int, int, int, int], precision: str, device: torch.device
) -> Case:
    batch, rows, columns, depth = sizes
    shapes = [(rows, depth), (depth, columns)]
    laid = [s[::-1] if o == "T" else s for s, o in zip(shapes, operands, strict=True)]
    many = (batch,) if batch > 1 else ()
    dtype = SETTINGS[precision].dtype
    left, right = (torch.rand(*many, *s, device=device).sub_(0.5).to(dtype) for s in laid)
    problem = problem_from_module(
        Product(operands).to(device), (left, right), SETTINGS[precision].matmul
    )
    return Case(operands, sizes, precision, (left, right), compile_problem(problem))


def measured(case: Case, clock: Any, rounds: int) -> tuple[list[str], dict[str, Any]]:
    """One row of the table, as text and as numbers."""
    sets = make_sets(case.inputs, None, clock.flush_bytes)
    ours, library = case.compiled.instantiate(), Product(case.operands)
    times = in_turns([direct("ours", ours, sets), direct("library", library, sets)], clock, rounds)
    ms = {name: found.ms for name, found in times.items()}
    ratio = error_ratio(ours(*case.inputs), library(*case.inputs), case)
    complain_of_fallbacks(ours, shape_text(case.sizes))
    over, path = ms["library"] / ms["ours"], path_taken(ours, case.inputs)
    record = {
        "operands": case.operands,
        "sizes": case.sizes,
        "precision": case.precision,
        "path": path,
        "ms": ms,
        "over_library": over,
        "error_ratio": ratio,
    }
    cells = [case.operands, shape_text(case.sizes), case.precision, path]
    cells += [f"{ms['ours']:.4f}", f"{ms['library']:.4f}", f"{over:.3f}x", f"{ratio:.2f}"]
    return cells, record


def path_taken(model: nn.Module, inputs: tuple[Tensor, Tensor]) -> str:
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        model(*inputs)
    return "generated" if any(GENERATED in e.name for e in recorded.events()) else "library"


def error_ratio(ours: Tensor, theirs: Tensor, case: Case) -> float:
    """The rms error of ours over that of theirs, against float64, on the first matrix's rows."""
    left, right = (x[:1].double() if x.dim() == 3 else x.double() for x in case.inputs)
    exact = Product(case.operands)(left, right)
    mine, other = (float((y[:1] if y.dim() == 3 else y).sub(exact).norm()) for y in (ours, theirs))
    return mine / other if other else math.inf if mine else 1.0


def _arguments() -> argparse.Namespace:
    parser = arguments(__doc__, "products", list(SETTINGS))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    return parser.parse_args()


def main() -> int:
    options = _arguments()
    device = resolve_device(options.device)
    clock = kernel_clock(device)
    sheet = Sheet("Products of two operands (ratios are those of ours)", COLUMNS)
    with torch.no_grad(), quiet_warnings():
        cases = [make_case(*case, p, device) for p in options.precisions for case in CASES]
        build(case.compiled.source for case in cases)
        with published(options, device, "Products of two run-time operands", sheet):
            for case in cases:
                with matmul_precision(SETTINGS[case.precision].matmul):
                    sheet.add(*measured(case, clock, options.rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
