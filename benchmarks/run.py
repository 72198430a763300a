"""Benchmark of the three founding models: whole, tail alone, and the time until they are ready.

Each model is optimized for the device, then timed by kernelwright's own bench at each batch and
precision; so is its tail (everything after the product), which is a model of its own in tails/. On
a GPU the kernels of the whole model are profiled too. Tables go to the terminal and, with the
hardware named, as markdown and JSON to benchmarks/results.
"""

from __future__ import annotations

import argparse
import datetime
import re
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from build_time import build_time
from profile_tail import Tail, profile_tail
from rich.console import Console
from sheet import Sheet, file_stem, write_results

from kernelwright.bench import Timings, bench
from kernelwright.bench.clock import device_name
from kernelwright.bench.context import matmul_precision
from kernelwright.bench.roofline import distinct_bytes, tensors
from kernelwright.bench.timings import BASELINES, CANDIDATE
from kernelwright.bench.variants import load_candidate
from kernelwright.commands import optimize_file
from kernelwright.errors import KernelwrightError
from kernelwright.problem import load_problem, resolve_device

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parent / "examples"
MODELS = sorted(p.parent.name for p in EXAMPLES.glob("*/model.py"))


@dataclass(frozen=True)
class Settings:
    """What to measure, and where the emitted files go."""

    device: torch.device
    folder: Path
    models: list[str]
    batches: list[int]
    precisions: list[str]
    seconds: float


def whole_models(settings: Settings) -> Sheet:
    sheet = Sheet("Whole models, ms", ("model", "precision", "batch", *TIMED))
    for name in settings.models:
        for precision in settings.precisions:
            source = EXAMPLES / name / "model.py"
            _time_batches(settings, sheet, name, source, precision)
    return sheet


def tails(settings: Settings) -> Sheet:
    """All after the product; there is none left, so that precision is nothing to a tail."""
    sheet = Sheet(
        "Tails alone (all after the product), ms", ("model", "precision", "batch", *TIMED)
    )
    for name in settings.models:
        source = HERE / "tails" / f"{name}.py"
        _time_batches(settings, sheet, name, source, settings.precisions[-1])
    return sheet


def kernels(settings: Settings) -> Sheet:
    """The GPU kernels of a call at the file's own batch, from the profiler."""
    columns = ("model", "precision", "kernel", "launches", "ms", "GB/s", "x floor")
    sheet = Sheet("Kernels after the product (floor: read it, write the output)", columns)
    for name in settings.models if settings.device.type == "cuda" else ():
        for precision in settings.precisions:
            for who, tail in _profile(settings, name, precision):
                for cells in _kernel_rows(f"{name}, {who}", precision, tail):
                    sheet.add(cells, {"model": name, "who": who, "precision": precision})
                sheet.record[-1] |= asdict(tail) | {"ms": tail.ms, "floor_ms": tail.floor_ms}
    return sheet


def readiness(settings: Settings) -> Sheet:
    """Seconds of optimize alone, of a first use and of a later use of the emitted file."""
    sheet = Sheet("Time until ready, s", ("model", "optimize", "cold build", "warm load"))
    for name in settings.models:
        source = EXAMPLES / name / "model.py"
        emitted, seconds = _emit(settings, name, source, settings.precisions[0])
        ready = build_time(emitted, settings.device.type)
        cells = (name, f"{seconds:.1f}", f"{ready.cold_s:.1f}", f"{ready.warm_s:.2f}")
        sheet.add(cells, {"model": name, "optimize_s": seconds} | asdict(ready))
    return sheet


PARTS: dict[str, Callable[[Settings], Sheet]] = {
    "models": whole_models,
    "tails": tails,
    "kernels": kernels,
    "ready": readiness,
}
TIMED = (*BASELINES, "ours", "p10 - p90", "over eager", "over best")


def _time_batches(
    settings: Settings, sheet: Sheet, name: str, source: Path, precision: str
) -> None:
    emitted, _ = _emit(settings, name, source, precision)
    for batch in settings.batches:
        print(
            f"timing {source.parent.name}/{source.stem} at {precision}, batch {batch}",
            file=sys.stderr,
        )
        timings = bench(
            source,
            emitted,
            settings.device.type,
            precision,
            batch=batch,
            seconds=settings.seconds,
        )
        for problem in timings.problems:
            print(f"  NOT VALID: {problem}", file=sys.stderr)
        record = timings.to_json() | {"model": name, "candidate": emitted.name}
        sheet.add((name, precision, str(batch), *_timing_cells(timings)), record)


def _timing_cells(timings: Timings) -> list[str]:
    medians = {row.name: row.median_ms for row in timings.rows}
    cells = [f"{medians[n]:.4g}" if medians.get(n) else "-" for n in (*BASELINES, CANDIDATE)]
    ours, eager = timings.row(CANDIDATE), medians.get("eager")
    assert ours is not None and ours.median_ms
    over_eager = f"{eager / ours.median_ms:.2f}x" if eager else "-"
    over_best = f"{timings.speedup:.2f}x" if timings.speedup else "-"
    if timings.problems:
        over_best += " NOT VALID"
    return [*cells, f"{ours.p10_ms:.4g} - {ours.p90_ms:.4g}", over_eager, over_best]


def _emit(settings: Settings, name: str, source: Path, precision: str) -> tuple[Path, float]:
    """Optimize without verify and bench, and say how long it took."""
    kind = "tail" if source.parent.name == "tails" else "model"
    target = settings.folder / f"{name}_{kind}_{precision}.py"
    started = time.perf_counter()
    optimize_file(
        source,
        target,
        device=settings.device.type,
        precision=precision,
        verify=False,
        time_it=False,
    )
    return target, time.perf_counter() - started


def _profile(settings: Settings, name: str, precision: str) -> list[tuple[str, Tail]]:
    source = EXAMPLES / name / "model.py"
    emitted, _ = _emit(settings, name, source, precision)
    problem = load_problem(source, settings.device.type, precision)
    candidate = load_candidate(problem, emitted)
    with matmul_precision(problem.precision), torch.no_grad():
        (output,) = tensors(problem.module(*problem.inputs))
        rows, columns = problem.inputs[0].shape[0], 8192
        moved = rows * columns * output.element_size() + distinct_bytes(output)
        both = (("eager", problem.module), ("ours", candidate))
        return [(who, profile_tail(module, problem.inputs, moved)) for who, module in both]


def _kernel_rows(name: str, precision: str, tail: Tail) -> list[tuple[str, ...]]:
    rows = [
        (name, precision, _short(k.name), f"{k.launches:g}", f"{k.ms:.4f}", "", "")
        for k in (*tail.product, *tail.kernels)
    ]
    rate, ratio = f"{tail.gigabytes_per_second:.0f}", f"{tail.ratio_to_floor:.2f}"
    count = sum(k.launches for k in tail.kernels)
    return [
        *rows,
        (name, precision, "tail in all", f"{count:g}", f"{tail.ms:.4f}", rate, ratio),
    ]


def _short(name: str) -> str:
    """A kernel's name without its template arguments and parameters."""
    plain = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    return re.split(r"[<(]", plain)[0][:40]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--batches", nargs="+", type=int, help="default: 1 64 1024; GPU: 1024")
    parser.add_argument("--precisions", nargs="+", help="default: highest; GPU: high highest")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seconds", type=float, default=3.0, help="to spend on each variant")
    parser.add_argument("--keep", metavar="DIR", help="keep the emitted files here")
    parser.add_argument("--results", metavar="DIR", default=str(HERE / "results"))
    return parser.parse_args()


def main() -> int:
    arguments = _arguments()
    device = resolve_device(arguments.device)
    on_gpu = device.type == "cuda"
    name = device_name(device)
    header = {
        "device": name,
        "torch": torch.__version__,
        "date": datetime.date.today().isoformat(),
    }
    results = Path(arguments.results)
    sheets: list[Sheet] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(arguments.keep or scratch)
        folder.mkdir(parents=True, exist_ok=True)
        settings = Settings(
            device,
            folder,
            arguments.models,
            arguments.batches or ([1024] if on_gpu else [1, 64, 1024]),
            arguments.precisions or (["high", "highest"] if on_gpu else ["highest"]),
            arguments.seconds,
        )
        for part in arguments.parts:
            try:
                sheet = PARTS[part](settings)
            except KernelwrightError as error:
                print(f"{part}: {error}", file=sys.stderr)
                return error.exit_code
            if sheet.rows:
                sheets.append(sheet)
                Console(width=130).print(sheet.rich())
                write_results(results, file_stem(name), "Founding models", header, sheets)
    return 0


if __name__ == "__main__":
    sys.exit(main())
