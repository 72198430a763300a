"""Products on the CPU: the founding models at 1 to 1024 rows, and random products against ATen.

    PYTHONPATH=src python3 benchmarks/cpu_products.py

- founding: whole models, wall clock, all variants in turns, errors against float64.
- random: `x @ W.T` of random sizes as the plan decides them: by the kernel where it takes so many
  rows, else by the library's call, which is then compared with itself. `--spread` log draws more
  small ones.

`--first N` begins with another random product, so that a long run can be made in parts.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import math
import os
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from founding import MODELS, errors, make_case
from measuring import arguments, build, complain_of_fallbacks, in_turns, kernel_clock, published
from sheet import Sheet
from torch import Tensor

from kernelwright.bench.inputs import make_sets
from kernelwright.bench.variants import direct
from kernelwright.emit.headers import flatten
from kernelwright.targets import target_of

ROWS = (1, 2, 4, 8, 16, 24, 32, 64, 128, 1024)
WAYS = ("eager", "torch.compile", "kernelwright")
MOST_ROWS, LEAST, LARGEST = 512, 64, 8192
FLAGS = ["-std=c++17", "-O3", "-march=native", "-mprefer-vector-width=512"]
FLAGS += ["-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC"]
# What a launcher of an emitted file does, for any sizes.
LAUNCHER = """
extern "C" void product(const float* x, const float* w, const float* bias, float* out,
                        const int64_t* n, int threads) {
  const kw::Product g{{x, n[0], n[3], n[4]}, {w, n[1], n[5], n[6]}, bias, out, n[2]};
  kw::multiply(g, {n[7], n[8], n[9]}, {1, 0, 0}, threads);
}
"""


# ---- the kernel by itself ------------------------------------------------------------------------


@functools.cache
def kernel(*flags: str) -> Any:
    """The header's product, compiled as emitted files are, with these flags besides."""
    text = flatten(["product.hpp"], LAUNCHER, "cpu") + LAUNCHER
    folder = Path(tempfile.mkdtemp())
    (folder / "product.cpp").write_text(text)
    command = [os.environ.get("CXX", "g++"), *FLAGS, "-fopenmp", *flags]
    subprocess.run([*command, "product.cpp", "-o", "product.so"], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "product.so")).product


def multiply(
    x: Tensor, w: Tensor, bias: Tensor | None = None, threads: int = 0, flags: tuple[str, ...] = ()
) -> Tensor:
    """`x @ w.T + bias` for matrices as they lie, or for batches of them."""
    *batch, rows, _ = x.shape
    out = x.new_empty(*batch, rows, w.shape[-2])
    into(out, x, w, bias, threads or torch.get_num_threads(), flags)
    return out


def into(
    out: Tensor,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    threads: int,
    flags: tuple[str, ...] = (),
) -> None:
    batch = (x.shape[0], x.stride(0), w.stride(0)) if x.ndim == 3 else (1, 0, 0)
    numbers = (*x.shape[-2:], *x.stride()[-2:], *w.stride()[-2:])
    rows, depth, *strides = numbers
    given = (ctypes.c_int64 * 10)(rows, w.shape[-2], depth, *strides, *batch)
    places = [ctypes.c_void_p(t.data_ptr() if t is not None else None) for t in (x, w, bias, out)]
    kernel(*flags)(*places, given, ctypes.c_int(threads))


# ---- the parts -----------------------------------------------------------------------------------


def founding(options: argparse.Namespace, sheet: Sheet) -> None:
    device = torch.device("cpu")
    for name in options.models:
        with tempfile.TemporaryDirectory() as folder:
            case = make_case(name, "highest", device, max(ROWS), Path(folder))
        build([case.compiled.source])
        ours = case.compiled.instantiate()
        for rows in options.rows:
            # Compiled for this number of rows alone, as its user would.
            torch.compiler.reset()
            calls = {
                "eager": case.module,
                "torch.compile": torch.compile(case.module, dynamic=False),
                "kernelwright": ours,
            }
            x = case.x[:rows].contiguous()
            add_row(sheet, name, x, calls, options.rounds)
        complain_of_fallbacks(ours, name)


@torch.no_grad()
def add_row(
    sheet: Sheet, name: str, x: Tensor, calls: dict[str, Callable[..., Any]], rounds: int
) -> None:
    rows = x.shape[0]
    clock = kernel_clock(x.device)
    sets = make_sets((x,), None, clock.flush_bytes)
    timed = in_turns([direct(n, c, sets) for n, c in calls.items()], clock, rounds)
    ms = {way: timed[way].ms for way in WAYS}
    best = min(ms["eager"], ms["torch.compile"]) / ms["kernelwright"]
    error, eager_error = errors(calls["kernelwright"](x), calls["eager"](x), calls["eager"], x)
    cells = [name, str(rows), *(f"{ms[way]:.2f}" for way in WAYS), f"{best:.2f}"]
    cells += [f"{error:.1e}", f"{eager_error:.1e}"]
    figures = {"ms": ms, "over_best": best, "error": error, "eager_error": eager_error}
    sheet.add(cells, {"model": name, "rows": rows, **figures})
    print(" ".join(cells), flush=True)


def sizes(count: int, spread: str) -> list[tuple[int, int, int]]:
    """Rows, columns and depth, the same in every run."""
    draw = random.Random(40)

    def between(low: int, high: int) -> int:
        if spread == "uniform":
            return draw.randint(low, high)
        return round(math.exp(draw.uniform(math.log(low), math.log(high))))

    bounds = ((1, MOST_ROWS), (LEAST, LARGEST), (LEAST, LARGEST))
    return [tuple(between(*b) for b in bounds) for _ in range(count)]  # type: ignore[misc]


def is_ours(rows: int, columns: int, depth: int) -> bool:
    """Whether an emitted file would launch the kernel on this machine."""
    ways = target_of(torch.device("cpu")).host
    has = Path("/proc/cpuinfo").read_text().split()
    found = ways.fitting(columns, depth, along=True) if ways else ()
    return any(way.takes(rows) for way in found if way.feature in has)


@torch.no_grad()
def random_products(options: argparse.Namespace, sheet: Sheet) -> None:
    for rows, columns, depth in sizes(options.first + options.count, options.spread)[
        options.first :
    ]:
        x, out = torch.rand(rows, depth), torch.empty(rows, columns)
        w = (torch.rand(columns, depth) - 0.5) / depth**0.5
        threads = torch.get_num_threads()
        library = functools.partial(F.linear, x, w)
        ours = functools.partial(into, out, x, w, None, threads)
        own = is_ours(rows, columns, depth) or options.always
        ms = alternately(library, ours if own else library)
        into(out, x, w, None, threads)
        exact = F.linear(x.double(), w.double())
        error, theirs = (float((y - exact).norm() / exact.norm()) for y in (out, library()))
        gain = ms[0] / ms[1]
        cells = [f"{rows} x {columns} x {depth}", "kernel" if own else "library"]
        cells += [f"{ms[0]:.3f}", f"{ms[1]:.3f}", f"{gain:.2f}", f"{error:.1e}", f"{theirs:.1e}"]
        record = {"rows": rows, "columns": columns, "depth": depth, "own": own, "ms": ms}
        sheet.add(cells, {**record, "gain": gain, "error": error, "eager_error": theirs})
        print(" ".join(cells), flush=True)
    gains = [row["gain"] for row in sheet.record]
    mean = statistics.geometric_mean(gains)
    made = sum(row["own"] for row in sheet.record)
    sheet.add(
        [
            "geometric mean",
            f"{made} by the kernel",
            "",
            "",
            f"{mean:.3f}",
            f"least {min(gains):.2f}",
            "",
        ],
        {"mean": mean, "least": min(gains), "gain": mean, "own": made},
    )


def alternately(first: Callable[[], Any], second: Callable[[], Any]) -> list[float]:
    """Medians in milliseconds of two calls in turns, for about a third of a second."""
    started = time.perf_counter()
    for call in (first, second, first, second):
        call()
    rounds = min(101, max(7, round(0.6 / (time.perf_counter() - started))))
    times: tuple[list[float], list[float]] = ([], [])
    for i in range(rounds):
        for k in (0, 1) if i % 2 else (1, 0):
            begun = time.perf_counter()
            (first, second)[k]()
            times[k].append((time.perf_counter() - begun) * 1e3)
    return [statistics.median(t) for t in times]


PARTS = {"founding": founding, "random": random_products}


def main() -> None:
    parser = arguments(__doc__, "cpu-products", ["highest"])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rows", nargs="+", type=int, default=list(ROWS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--count", type=int, default=200, help="of random products")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--spread", choices=("uniform", "log"), default="uniform")
    parser.add_argument("--always", action="store_true", help="the kernel, whatever the plan says")
    options = parser.parse_args()
    head = ("model", "rows", *WAYS, "over the best", "error", "eager's error")
    sheets = {
        "founding": Sheet("The founding models, ms", head),
        "random": Sheet(
            "Random products, ms",
            ("rows x columns x depth", "by", "ATen", "kernelwright", "gain", "error", "ATen's"),
            2,
        ),
    }
    chosen = [sheets[part] for part in options.parts]
    with published(options, torch.device("cpu"), "Products on the CPU", *chosen):
        for part in options.parts:
            PARTS[part](options, sheets[part])


if __name__ == "__main__":
    main()
