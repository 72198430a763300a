"""Products on the CPU: the founding models at 1 to 1024 rows, and random products against ATen.

    PYTHONPATH=src python3 benchmarks/cpu_products.py

- founding: whole models, wall clock, all variants in turns, errors against float64.
- random: `x @ W.T` of random sizes as the plan decides them: by the kernel where it takes so many
  rows, else by the library's call, which is then compared with itself. `--spread` log draws more
  small ones. A pair that comes out below 1 is timed again, and all of its readings count.

All is compiled and its errors are found out before the first clock runs; with `--pause` a line is
awaited in between. `--resume` goes on from what the results file has: the models are measured once
more, and a figure is the median of the runs; products are those that are not there yet, for as long
as `--seconds`.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import hashlib
import json
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
from founding import MODELS, Case, errors, make_case
from measuring import HERE, arguments, build, complain_of_fallbacks, published
from sheet import Sheet, file_stem
from torch import Tensor

from kernelwright.bench.clock import device_name, make_clock
from kernelwright.bench.inputs import make_sets
from kernelwright.bench.runner import one_round
from kernelwright.bench.variants import Variant, direct, warm
from kernelwright.emit.headers import flatten
from kernelwright.targets import target_of

ROWS = (1, 2, 4, 8, 16, 24, 32, 64, 128, 1024)
WAYS = ("eager", "torch.compile", "kernelwright")
MOST_ROWS, LEAST, LARGEST = 512, 64, 8192
CHECKED_ROWS = 8  # of a random product
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
    command = [os.environ.get("CXX", "g++"), *FLAGS, "-fopenmp", *flags]
    name = hashlib.sha256(" ".join([text, *command]).encode()).hexdigest()[:16]
    folder = HERE.parent / "build" / f"product_{name}"
    built = folder / "product.so"
    if not built.exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "product.cpp").write_text(text)
        new = f"{os.getpid()}.so"
        subprocess.run([*command, "product.cpp", "-o", new], cwd=folder, check=True)
        (folder / new).replace(built)
    return ctypes.CDLL(str(built)).product


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


# ---- the founding models -------------------------------------------------------------------------

HEAD = ("model", "rows", *WAYS, "over the best", "runs", "error", "eager's error")
Record = dict[str, Any]


class Founding:
    """Whole models; `prepare` compiles, builds and compares them, `measure` times."""

    def __init__(self, options: argparse.Namespace, known: list[Record]) -> None:
        self.options, self.known = options, known
        self.sheet = Sheet("The founding models, ms", HEAD)
        self.clock = make_clock(torch.device("cpu"))
        self.variants: dict[tuple[str, int], list[Variant]] = {}
        self.errors: dict[tuple[str, int], tuple[float, float]] = {}
        for record in known:
            self.sheet.add(_founding_cells(record), record)

    def prepare(self) -> None:
        # Each number of rows is compiled for alone, as its user would.
        torch._dynamo.config.cache_size_limit = len(ROWS) * len(MODELS)
        for name in self.options.models:
            with tempfile.TemporaryDirectory() as folder:
                case = make_case(name, "highest", torch.device("cpu"), max(ROWS), Path(folder))
            build([case.compiled.source])
            ours = case.compiled.instantiate()
            for rows in self.options.rows:
                self._prepare(case, ours, rows)
            complain_of_fallbacks(ours, name)

    @torch.no_grad()
    def _prepare(self, case: Case, ours: Any, rows: int) -> None:
        x = case.x[:rows].contiguous()
        compiled = torch.compile(case.module, dynamic=False)
        calls = dict(zip(WAYS, (case.module, compiled, ours), strict=True))
        sets = make_sets((x,), None, self.clock.flush_bytes)
        variants = [direct(way, call, sets) for way, call in calls.items()]
        for variant in variants:
            warm(variant, 1)
        known = [r for r in self.known if (r["model"], r["rows"]) == (case.name, rows)]
        found = [(r["error"], r["eager_error"]) for r in known]
        key = case.name, rows
        self.errors[key] = found[0] if found else errors(ours(x), case.module(x), case.module, x)
        self.variants[key] = variants

    @torch.no_grad()
    def measure(self) -> None:
        for (name, rows), variants in self.variants.items():
            for variant in variants:
                warm(variant, 1)
            readings = [one_round(variants, k, self.clock) for k in range(self.options.rounds)]
            run = {
                v.name: statistics.median(r[i][0] for r in readings) for i, v in enumerate(variants)
            }
            labels = {"model": name, "rows": rows}
            before = [r["runs"] for r in self.sheet.record if labels.items() <= r.items()]
            error, theirs = self.errors[name, rows]
            figures = {
                "runs": [*(r for runs in before for r in runs), run],
                "error": error,
                "eager_error": theirs,
            }
            record = {**labels, **figures}
            self.sheet.put(labels, _founding_cells(record), record)
            print(*_founding_cells(record), flush=True)


def _founding_cells(record: Record) -> list[str]:
    runs = record["runs"]
    ms = [statistics.median(run[way] for run in runs) for way in WAYS]
    over = [min(run["eager"], run["torch.compile"]) / run["kernelwright"] for run in runs]
    cells = [record["model"], str(record["rows"]), *(f"{t:.2f}" for t in ms)]
    cells += [f"{statistics.median(over):.2f}", str(len(runs))]
    return [*cells, f"{record['error']:.1e}", f"{record['eager_error']:.1e}"]


# ---- random products -----------------------------------------------------------------------------


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


class Random:
    """Products of random sizes, all of them parts of one large pair of operands."""

    def __init__(self, options: argparse.Namespace, known: list[Record]) -> None:
        self.options = options
        head = ("rows x columns x depth", "by", "ATen", "kernelwright", "gain", "error", "ATen's")
        self.sheet = Sheet("Random products, ms", head, 2)
        self.known = {tuple(r["sizes"]): r for r in known if "sizes" in r}
        self.drawn = sizes(options.first + options.count, options.spread)[options.first :]
        self.found: dict[tuple[int, ...], tuple[float, float]] = {}

    def prepare(self) -> None:
        self.x, self.out = torch.rand(MOST_ROWS * LARGEST), torch.empty(MOST_ROWS * LARGEST)
        self.w = torch.rand(LARGEST * LARGEST).sub_(0.5)
        kernel()

    def operands(self, rows: int, columns: int, depth: int) -> tuple[Tensor, Tensor, Tensor]:
        given = (self.x, rows, depth), (self.w, columns, depth), (self.out, rows, columns)
        x, w, out = (whole[: n * k].view(n, k) for whole, n, k in given)
        return x, w, out

    @torch.no_grad()
    def measure(self) -> None:
        end = time.perf_counter() + self.options.seconds
        for size in self.drawn:
            if time.perf_counter() > end:
                break
            if size in self.known:
                continue
            x, w, out = self.operands(*size)
            own = is_ours(*size) or self.options.always
            library = functools.partial(F.linear, x, w)
            ours = functools.partial(into, out, x, w, None, torch.get_num_threads())
            ms = alternately(library, ours if own else library)
            self.known[size] = {"sizes": size, "own": own, "ms": ms, "gain": ms[0] / ms[1]}
            print(*size, f"{ms[0]:.3f} {ms[1]:.3f} {ms[0] / ms[1]:.2f}", flush=True)

    @torch.no_grad()
    def conclude(self) -> None:
        """Errors, which need no clock, and the table."""
        for size, record in self.known.items():
            if "error" not in record:
                x, w, out = self.operands(*size)
                into(out, x, w, None, torch.get_num_threads())
                exact = x[:CHECKED_ROWS].double() @ w.double().T
                record["error"], record["eager_error"] = (
                    float((y[:CHECKED_ROWS] - exact).norm() / exact.norm())
                    for y in (out, F.linear(x, w))
                )
            ms = [f"{t:.3f}" for t in record["ms"]]
            by = "kernel" if record["own"] else "library"
            cells = [" x ".join(map(str, size)), by, *ms, f"{record['gain']:.2f}"]
            cells += [f"{record['error']:.1e}", f"{record['eager_error']:.1e}"]
            self.sheet.add(cells, record)
        gains = [record["gain"] for record in self.known.values()]
        made = sum(record["own"] for record in self.known.values())
        mean, least = statistics.geometric_mean(gains), min(gains)
        cells = [f"{len(gains)}, geometric mean", f"{made} by the kernel", "", "", f"{mean:.3f}"]
        self.sheet.add([*cells, f"least {least:.2f}", ""], {"mean": mean, "least": least})


def alternately(first: Callable[[], Any], second: Callable[[], Any]) -> list[float]:
    """Medians in milliseconds of two calls in turns, for about a third of a second.

    Where the second seems slower, three times as long.
    """
    started = time.perf_counter()
    for call in (first, second, first, second):
        call()
    rounds = min(101, max(7, round(0.6 / (time.perf_counter() - started))))
    times: tuple[list[float], list[float]] = ([], [])
    medians: list[float] = []
    for more in (rounds, 2 * rounds):
        for i in range(more):
            for k in (0, 1) if i % 2 else (1, 0):
                begun = time.perf_counter()
                (first, second)[k]()
                times[k].append((time.perf_counter() - begun) * 1e3)
        medians = [statistics.median(t) for t in times]
        if medians[0] >= medians[1]:
            break
    return medians


# ---- all of it -----------------------------------------------------------------------------------


def earlier(options: argparse.Namespace, title: str) -> list[Record]:
    """What the results file has of a table."""
    stem = f"{file_stem(device_name(torch.device('cpu')))}-{options.name}"
    path = Path(options.results) / f"{stem}.json"
    if not (options.resume and path.exists()):
        return []
    found: list[Record] = json.loads(path.read_text())["parts"].get(title, [])
    return found


def main() -> None:
    parser = arguments(__doc__, "cpu-products", ["highest"])
    parser.add_argument("--parts", nargs="+", choices=("founding", "random"))
    parser.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rows", nargs="+", type=int, default=list(ROWS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--count", type=int, default=200, help="of random products")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--spread", choices=("uniform", "log"), default="uniform")
    parser.add_argument("--always", action="store_true", help="the kernel, whatever the plan says")
    parser.add_argument("--resume", action="store_true", help="go on from the results file")
    parser.add_argument("--seconds", type=float, default=math.inf, help="for random products")
    parser.add_argument("--pause", action="store_true", help="await a line before the clocks run")
    options = parser.parse_args()
    chosen = options.parts or ("founding", "random")
    models = Founding(options, earlier(options, "The founding models, ms"))
    products = Random(options, earlier(options, "Random products, ms"))
    with published(
        options, torch.device("cpu"), "Products on the CPU", models.sheet, products.sheet
    ):
        if "founding" in chosen:
            models.prepare()
        products.prepare()
        if options.pause:
            input("prepared; a line starts the clocks\n")
        if "founding" in chosen:
            models.measure()
        if "random" in chosen:
            products.measure()
        if products.known:
            products.conclude()


if __name__ == "__main__":
    main()
