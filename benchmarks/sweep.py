"""The sweep: Linear, GroupNorm and LeakyReLU at many sizes, against torch.compile in default mode.

Both are compiled anew for every batch M: ours with it as the example, torch.compile with
dynamic=False, its strongest form. That is 135 compilations, so processes of their own make them
side by side first and leave them in a cache; here they take a tenth of a second each. What those
processes found by timing (on a GPU that they shared) is thrown away, and timed again here. Times
are of the GPU alone; beside them stands how long the host takes to make the call, which is what
counts for small sizes.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from measuring import (
    ROUNDS,
    SETTINGS,
    arguments,
    build,
    by_library,
    compiled_for,
    complain_of_fallbacks,
    in_turns,
    kernel_clock,
    path_taken,
    published,
    shapes_of,
)
from sheet import Sheet
from torch import Tensor, nn

from kernelwright.bench.clock import Clock
from kernelwright.bench.context import matmul_precision, quiet_warnings
from kernelwright.bench.inputs import make_sets
from kernelwright.bench.variants import direct
from kernelwright.pipeline import Compiled
from kernelwright.problem import resolve_device

ROWS = [1, 16, 64, 128, 256, 512, 1024, 4096, 16384]
PAIRS = "8192x8192,4096x4096,1024x4096,16384x2048,1000x1000"
QUICK_ROWS = [16, 128, 1024, 4096]
QUICK_PAIRS = [(8192, 8192), (1000, 1000)]
PROCESSES = 15
SLACK = 0.98
COLUMNS = (
    *("M", "N", "K", "precision", "path", "ours ms", "torch.compile ms", "over compile"),
    *("ours by library ms", "host us, ours / compile"),
)


class Model(nn.Module):
    def __init__(self, columns: int, depth: int) -> None:
        super().__init__()
        self.linear = nn.Linear(depth, columns)
        self.norm = nn.GroupNorm(25 if columns == 1000 else 32, columns)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.leaky_relu(self.norm(self.linear(x)), 0.01)


@dataclass(frozen=True)
class Case:
    """One M, N, K at one precision, compiled."""

    rows: int
    columns: int
    depth: int
    precision: str
    module: nn.Module
    compiled: Compiled


def make_model(columns: int, depth: int, precision: str, device: torch.device) -> nn.Module:
    with device:
        return Model(columns, depth).to(SETTINGS[precision].dtype).eval()


def make_input(rows: int, module: nn.Module) -> Tensor:
    weight = module.get_parameter("linear.weight")
    return torch.rand(rows, weight.shape[1], device=weight.device).to(weight.dtype)


def make_cases(
    rows: list[int], columns: int, depth: int, precision: str, device: torch.device
) -> list[Case]:
    """One for each number of rows, all with one module."""
    module = make_model(columns, depth, precision, device)
    return [
        Case(m, columns, depth, precision, module, compiled_for(module, m, depth, precision))
        for m in rows
    ]


def compiled_by_torch(module: nn.Module, x: Tensor) -> Any:
    """torch.compile for this very shape, and called once so that it is done."""
    torch.compiler.reset()
    function = torch.compile(module, dynamic=False)
    function(x)
    return function


def leave_in_cache(rows: int, columns: int, depth: int, precision: str, device: str) -> None:
    """In a process of its own: what torch.compile makes for this shape goes to the cache."""
    setting = SETTINGS[precision]
    with matmul_precision(setting.matmul), torch.no_grad(), quiet_warnings():
        module = make_model(columns, depth, precision, torch.device(device))
        compiled_by_torch(module, make_input(rows, module))
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def measured(case: Case, clock: Clock, rounds: int) -> tuple[list[str], dict[str, Any]]:
    """One row of the table, as text and as numbers."""
    rows = case.rows
    x = make_input(rows, case.module)
    sets = make_sets((x,), None, clock.flush_bytes)
    ours = case.compiled.instantiate()
    path = path_taken(ours, x)
    variants = [
        direct("ours", ours, sets),
        direct("compile", compiled_by_torch(case.module, x), sets),
    ]
    if path != "library":
        variants.append(direct("by library", by_library(ours), sets))
    times = in_turns(variants, clock, rounds)
    complain_of_fallbacks(ours, f"{rows}x{case.columns}x{case.depth}")
    mine, theirs, other = times["ours"], times["compile"], times.get("by library")
    record = {
        "rows": rows,
        "columns": case.columns,
        "depth": case.depth,
        "precision": case.precision,
        "path": path,
        "ms": {name: t.ms for name, t in times.items()},
        "host_ms": {name: t.host_ms for name, t in times.items()},
        "over_compile": theirs.ms / mine.ms,
    }
    cells = [str(n) for n in (rows, case.columns, case.depth)]
    cells += [case.precision, path, f"{mine.ms:.4f}", f"{theirs.ms:.4f}"]
    cells += [f"{record['over_compile']:.3f}x", f"{other.ms:.4f}" if other else "-"]
    return [*cells, f"{1e3 * mine.host_ms:.0f} / {1e3 * theirs.host_ms:.0f}"], record


def prepare(options: argparse.Namespace, device: torch.device) -> list[Case]:
    """Emit and build ours while other processes fill torch.compile's cache."""
    wanted = [(n, k, p) for p in options.precisions for n, k in options.columns]
    count = min(PROCESSES, os.cpu_count() or 1)
    # The workers' own helpers would be a dozen for each of a dozen.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    pool = ProcessPoolExecutor(count, get_context("spawn"))
    try:
        started = [
            pool.submit(leave_in_cache, m, *where, device.type)
            for where in wanted
            for m in options.rows
        ]
        cases = [case for where in wanted for case in make_cases(options.rows, *where, device)]
        build(case.compiled.source for case in cases)
        problems = Counter(str(error) for f in started if (error := f.exception()) is not None)
    finally:
        pool.shutdown(cancel_futures=True)
    for problem, times in problems.items():
        print(f"torch.compile, {times} times: {problem[:300]}", file=sys.stderr)
    for found in Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).rglob("*.best_config"):
        found.unlink()
    return cases


def summary(sheet: Sheet) -> str:
    slow = [r for r in sheet.record if r["over_compile"] < SLACK]
    worst = min((r["over_compile"] for r in sheet.record), default=1.0)
    paths = Counter(r["path"] for r in sheet.record)
    ran = ", ".join(f"{n} {path}" for path, n in paths.items())
    return (
        f"{len(sheet.record)} shapes ({ran}); {len(slow)} slower than torch.compile by more than "
        f"2%; the worst {worst:.3f}x."
    )


def _arguments() -> argparse.Namespace:
    parser = arguments(__doc__, "sweep", ["highest", "high", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS, metavar="M")
    parser.add_argument("--columns", type=shapes_of(2), default=PAIRS, metavar="NxK,...")
    parser.add_argument("--quick", action="store_true", help="fewer rows and columns")
    options = parser.parse_args()
    if options.quick:
        options.rows, options.columns = QUICK_ROWS, QUICK_PAIRS
    return options


def main() -> int:
    options = _arguments()
    device = resolve_device(options.device)
    clock = kernel_clock(device)
    sheet = Sheet("Linear, GroupNorm, LeakyReLU", COLUMNS)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as cache, torch.no_grad(), quiet_warnings():
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        cases = prepare(options, device)
        ready = time.perf_counter() - started
        with published(options, device, "The sweep", sheet) as save:
            for case in cases:
                with matmul_precision(SETTINGS[case.precision].matmul):
                    sheet.add(*measured(case, clock, options.rounds))
                save()
        print(summary(sheet))
    spent = time.perf_counter() - started
    print(f"{ready:.0f} s to compile, {spent - ready:.0f} s to measure", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
