"""What a sweep costs: small problems on one worker and on more, and the memory of the driver.

    PYTHONPATH=src python benchmarks/sweeping.py workers --problems 60 --jobs 1 2
    PYTHONPATH=src python benchmarks/sweeping.py kills --problems 60 --kills 3
    PYTHONPATH=src python benchmarks/sweeping.py memory --tasks 100 1000 --on ray

`workers` optimizes problems that are written for it, once with each number of workers. `kills` does
it undisturbed, and with a driver that is killed in between so many times; then it compares the two
tables, times left out. `memory` judges so many candidates, each by a worker that pretends (driver,
Ray, guards and rows are real), and reports how much memory the driver has taken.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kernelwright.sweep import Ask, Corpus, Limits, Options, Place, Plan, sweep
from kernelwright.sweep.journal import RESULTS, rows

HERE = Path(__file__).resolve().parent
PRETENDER = HERE.parent / "tests" / "sweep" / "fake_worker.py"
STEPS = (
    "x * {a} + {b}",
    "torch.tanh(x)",
    "torch.sigmoid(x) * x",
    "F.gelu(x)",
    "x.clamp(-{b}, {a})",
)
TAILS = ("x.sum(1)", "F.layer_norm(x, ({columns},))", "torch.softmax(x, 1)", "x - x.mean(1, True)")
PROBLEM = """import torch
import torch.nn.functional as F


class Model(torch.nn.Module):
    def forward(self, x):
        x = {first}
        x = {second}
        return {tail}


def get_inputs():
    return [torch.randn({rows}, {columns})]
"""
PRETENDED = "# fake: pass 1.5\nclass Model: ...\ndef get_inputs(): return []\n"


def write_problems(folder: Path, count: int) -> Path:
    """So many different ones, each of two steps and a reduction of rows."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        sizes = {"rows": 32 + 8 * (number % 7), "columns": 64 + 16 * (number % 11)}
        parts = {"a": 1.5 + number / 10, "b": 0.5 + number / 7}
        first, second = (STEPS[(number * k + number // 5) % len(STEPS)] for k in (1, 3))
        text = PROBLEM.format(
            first=first.format(**parts),
            second=second.format(**parts),
            tail=TAILS[number % len(TAILS)].format(**sizes),
            **sizes,
        )
        (folder / f"{number}_chain.py").write_text(text)
    return folder


def options(seconds: float = 0.2) -> Options:
    return Options(device="cpu", seconds=seconds)


def workers(asked: argparse.Namespace, folder: Path) -> None:
    problems = write_problems(folder / "problems", asked.problems)
    for jobs in asked.jobs:
        os.environ["XDG_CACHE_HOME"] = str(folder / f"cache{jobs}")  # nobody finds another's builds
        started = time.perf_counter()
        out = folder / f"run{jobs}"
        swept = sweep(Corpus(problems, options=options()), Plan(out, jobs=jobs, quiet=True))
        took = time.perf_counter() - started
        whole = swept.summary.whole
        print(f"{jobs} workers: {took:.1f} s, {whole.passed} of {whole.tasks} passed", flush=True)


def kills(asked: argparse.Namespace, folder: Path) -> None:
    problems = write_problems(folder / "problems", asked.problems)
    calm, out = folder / "calm", folder / "killed"
    command = [sys.executable, "-m", "kernelwright", "sweep", str(problems), "--device", "cpu"]
    command += ["--seconds", "0.2", "--quiet", "--out"]
    for number in range(asked.kills):
        more = ["--resume"] if out.exists() else []
        driver = subprocess.Popen([*command, str(out), *more])
        wanted = asked.problems * (number + 1) // (asked.kills + 1)
        while ended(out) < wanted and driver.poll() is None:
            time.sleep(0.2)
        driver.kill()
        driver.wait()
        print(f"killed with {ended(out)} of {asked.problems} rows", flush=True)
    subprocess.run([*command, str(out), "--resume"], check=True)
    subprocess.run([*command, str(calm)], check=True)
    first, second = (table(path) for path in (calm, out))
    assert len(list(rows(out))) == len(second) == asked.problems
    print(f"{len(first)} rows, equal: {first == second}")
    for name in sorted(first):
        if first[name] != second.get(name):
            print(f"{name}: {first[name]}, and killed {second.get(name)}")


def ended(out: Path) -> int:
    path = out / RESULTS
    return path.read_bytes().count(b"\n") if path.exists() else 0


def table(out: Path) -> dict[str, tuple[object, ...]]:
    """All that a sweep says of a task but its times."""
    names = ("status", "reason", "verdict", "kernels", "fused")
    return {row["problem"]: tuple(row.get(name) for name in names) for row in rows(out)}


def memory(asked: argparse.Namespace, folder: Path) -> None:
    """Each count in a driver of its own, which reports itself."""
    for count in asked.tasks:
        command = [sys.executable, __file__, "driver", "--tasks", str(count), "--on", asked.on]
        environment = {**os.environ, "PYTHONPATH": str(HERE.parent / "src")}
        subprocess.run(command, check=True, env=environment)


def driver(asked: argparse.Namespace, folder: Path) -> None:
    (count,) = asked.tasks
    problem = folder / "problems" / "one.py"
    problem.parent.mkdir()
    problem.write_text(PRETENDED)
    candidates = folder / "candidates" / "one"
    candidates.mkdir(parents=True)
    for number in range(count):
        (candidates / f"{number:05}.py").write_text(f"class ModelNew: ...  # {number}\n" * 200)
    command = (sys.executable, "-I", "-S", str(PRETENDER))
    plan = Plan(
        folder / "run",
        on=asked.on,
        ask=Ask(cpus=1.0),
        place=Place(Limits(), command=command),
        quiet=True,
    )
    started = time.perf_counter()
    swept = sweep(Corpus(problem.parent, candidates.parent), plan)
    took = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    now = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20
    found = {"tasks": swept.summary.whole.passed, "seconds": round(took, 1)}
    print(json.dumps({**found, "peak_mb": round(peak, 1), "end_mb": round(now, 1)}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=("workers", "kills", "memory", "driver"))
    parser.add_argument("--problems", type=int, default=60)
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--tasks", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--on", choices=("here", "ray"), default="ray")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        globals()[asked.what](asked, Path(folder))


if __name__ == "__main__":
    main()
