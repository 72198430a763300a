"""The small networks of networks/ on a CPU: eager, torch.compile and ours in turns, in eval mode.

`--prepare` compiles and builds everything, which may run beside other things; a call without it
times what lies in the folder, on an otherwise idle machine. A reading is the mean of as many calls
as take about a millisecond, a figure the median of the readings of `--seconds`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import network_files
import torch
from measuring import HERE, published
from sheet import Sheet

from kernelwright.bench.variants import load_candidate
from kernelwright.commands import compile_file
from kernelwright.problem import Problem, in_mode, load_problem

NETWORKS = network_files.networks(small=True)
COLUMNS = ("network", "eager", "torch.compile", "ours", "over the best")
READING = 1e-3


def problem_of(name: str, folder: Path) -> Problem:
    family = NETWORKS[name]
    source = network_files.write(family, name.removeprefix(f"{family}_"), folder)
    return in_mode(load_problem(source, "cpu", "highest"), False)


def prepare(name: str, folder: Path) -> None:
    """Compile, build and call once, by both compilers."""
    problem = problem_of(name, folder)
    assert problem.path is not None
    emitted = folder / f"{name}_new.py"
    emitted.write_text(compile_file(problem.path, "cpu", "highest", training=False).source)
    with torch.no_grad():
        for call in (load_candidate(problem, emitted), torch.compile(problem.module)):
            call(*problem.inputs)


def timed(name: str, folder: Path, seconds: float) -> dict[str, float]:
    """Milliseconds of each variant."""
    problem = problem_of(name, folder)
    ours = load_candidate(problem, folder / f"{name}_new.py")
    torch.compiler.reset()
    calls = {"eager": problem.module, "compile": torch.compile(problem.module), "ours": ours}
    with torch.no_grad():
        counts = {way: warm(call, problem.inputs) for way, call in calls.items()}
        readings: dict[str, list[float]] = {way: [] for way in calls}
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for way, call in calls.items():
                readings[way].append(reading(call, problem.inputs, counts[way]))
    assert not ours.fallbacks, f"{name} ran the original: {dict(ours.fallbacks)}"
    return {way: 1e3 * statistics.median(values) for way, values in readings.items()}


def warm(call: Callable[..., Any], inputs: Any) -> int:
    """As many calls as a reading should have."""
    for _ in range(5):
        call(*inputs)
    return max(1, int(READING / reading(call, inputs, 3)))


def reading(call: Callable[..., Any], inputs: Any, count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call(*inputs)
    return (time.perf_counter() - start) / count


def cells(record: dict[str, Any]) -> list[str]:
    times = [f"{record[way]:.4f}" for way in ("eager", "compile", "ours")]
    return [record["network"], *times, f"{record['over']:.2f}x"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--folder", type=Path, default=Path("small_networks"))
    parser.add_argument("--only", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--results", metavar="DIR", default=str(HERE / "results"))
    parser.add_argument("--name", default="small-networks")
    options = parser.parse_args()
    options.folder.mkdir(exist_ok=True)
    if options.prepare:
        for name in options.only:
            prepare(name, options.folder)
            print(name, flush=True)
        return
    threads = torch.get_num_threads()
    sheet = Sheet(f"Small networks, eval mode, float32, {threads} threads, ms", COLUMNS)
    with published(options, torch.device("cpu"), "Small networks", sheet):
        for name in options.only:
            times = timed(name, options.folder, options.seconds)
            over = min(times["eager"], times["compile"]) / times["ours"]
            record = {"network": name, **times, "over": over}
            sheet.add(cells(record), record)
        overs = [record["over"] for record in sheet.record]
        mean = statistics.geometric_mean(overs)
        sheet.add(["geometric mean", "", "", "", f"{mean:.2f}x"], {"geometric_mean": mean})


if __name__ == "__main__":
    main()
