"""One process for each model: a child goes through its stages, the parent keeps what each one said.

A child prints a line of JSON after every stage, so a model that dies or runs out of its time keeps
what it had. Several children may run side by side; while one of them times, the others keep off the
device. With `--ahead` all models are compiled and certified first, by as many children as there are
cores, and the children that time find everything built. The results are written after every model,
and `--resume` goes on from them.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sheet import Sheet

Record = dict[str, Any]
Job = dict[str, Any]
Stage = Callable[[Job, Path, Path], Record]

CORES = len(os.sched_getaffinity(0))
THREADS = "OMP_NUM_THREADS"


# ---- the child: one model in one mode ------------------------------------------------------------


@contextlib.contextmanager
def device_lock(path: Path, alone: bool) -> Iterator[None]:
    """The device for oneself, or shared with others who do not time."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


def go_through(job: Job, source: Path, stages: Sequence[Stage]) -> None:
    """Print what is known after each stage, as one line of JSON; what was done ahead is kept."""
    folder, shared = Path(job["folder"]), Path(job["lock"]).parent
    os.environ["TORCH_EXTENSIONS_DIR"] = str(shared / "extensions")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(shared / "inductor")
    for stage in stages:
        kept = folder / f"{stage.__name__}.json"
        if not kept.exists():
            kept.write_text(json.dumps(stage(job, source, folder / "model_new.py")))
        print(kept.read_text(), flush=True)


@contextlib.contextmanager
def share_of_cores(threads: int) -> Iterator[None]:
    """Torch in so many threads, here and in the processes that are started meanwhile.

    Each of several children that all take every core waits for the others most of the time. What
    is timed has all cores: it is alone.
    """
    import torch

    before, here = os.environ.get(THREADS), torch.get_num_threads()
    threads = min(threads, here)
    os.environ[THREADS] = str(threads)
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(here)
        if before is None:
            del os.environ[THREADS]
        else:
            os.environ[THREADS] = before


def compile_stage(job: Job, source: Path, emitted: Path) -> Record:
    from kernelwright import spawn
    from kernelwright.commands import compile_file
    from kernelwright.expand import expand

    # What certifies has torch to import, which takes as long as compiling. Where children run side
    # by side, nobody is disturbed by it who is not already.
    if job["verify"] and job["threads"] < CORES:
        with share_of_cores(job["threads"]):
            spawn.ahead()
    started = time.perf_counter()
    training = job["mode"] == "train"
    compiled = compile_file(source, job["device"], job["precision"], training=training)
    seconds = time.perf_counter() - started
    emitted.write_text(compiled.source)
    left = Counter(row.op for row in compiled.ledger if row.fate == "aten")
    operators = [n.op for n in compiled.captured if n.payload is not None and n.op != "getitem"]
    return {
        "optimize_s": seconds,
        "operators": len(operators),
        "kernels": len(compiled.kernels),
        "launches": sum(region.launches for region in compiled.planned.regions),
        "steps": len(compiled.planned.regions),
        "lines": len(compiled.source.splitlines()),
        "left_to_aten": dict(left),
        "laws": list(compiled.rewrites),
        "mode_of_graph": compiled.captured.mode,
        "flops_of_plan": planned_flops(compiled),
        "flops_of_model": contraction_flops(expand(compiled.captured), compiled.problem.batch),
    }


def contraction_flops(graph: Any, batch: int) -> int:
    """Of the library's contractions and of generated ones alike, at the batch of the example.

    A depthwise convolution that the planner made a sum over windows is no less work for that.
    """
    from kernelwright.graph import Contraction, Reduction, hint, product

    flops = 0
    for node in graph:
        if isinstance(node.payload, Contraction):
            flops += hint(node.payload.flops, batch)
        elif isinstance(node.payload, Reduction) and node.origin.op.startswith("conv"):
            flops += 2 * hint(product(graph[node.inputs[0]].type.shape), batch)
    return flops


def planned_flops(compiled: Any) -> int:
    """Of the contractions that are left: a convolution with a pool in its weights has fewer."""
    from kernelwright.graph import hint
    from kernelwright.lower import ConvKernel

    batch = compiled.problem.batch
    folded = [k for k in compiled.kernels if isinstance(k, ConvKernel) and k.form.mean]
    saved = sum(hint(k.region.contraction.flops, batch) - k.form.flops(batch) for k in folded)
    return contraction_flops(compiled.primitives, batch) - round(saved)


def verify_stage(job: Job, source: Path, emitted: Path) -> Record:
    if not job["verify"]:
        return {}
    from kernelwright.verify.session import verify

    with device_lock(Path(job["lock"]), alone=False), share_of_cores(job["threads"]):
        certificate = verify(
            source,
            emitted,
            job["device"],
            job["precision"],
            quick=not job["full"],
            time_limit=job["verify"],
            training=job["mode"] == "train",
        )
    failed = [str(check) for check in certificate.failures]
    return {"certified": certificate.passed, "verdict": certificate.verdict, "failed": failed}


# ---- the parent ----------------------------------------------------------------------------------


def add_options(parser: argparse.ArgumentParser, limit: float, budget: float) -> None:
    """What every runner of children has."""
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--precision", choices=("highest", "high"), default="highest")
    parser.add_argument("--jobs", type=int, default=1, help="models at the same time")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--verify", type=float, metavar="SECONDS", default=60.0, help="0: do not")
    parser.add_argument("--full", action="store_true", help="verify with all checks, not the quick")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile")
    parser.add_argument("--no-autotune", action="store_true", help="without its max-autotune")
    parser.add_argument("--ahead", action="store_true", help="time when all are certified")
    parser.add_argument("--limit", type=float, default=limit, help="seconds for each model")
    parser.add_argument("--budget", type=float, default=budget, help="seconds for all")
    parser.add_argument("--resume", action="store_true", help="keep what the results file has")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)


def known(path: Path, part: str) -> list[Record]:
    """The rows of one table of an earlier run."""
    return json.loads(path.read_text())["parts"].get(part, []) if path.is_file() else []


@dataclass
class Parent:
    """What children share, and when there is no time left for another one."""

    script: str
    options: Any
    folder: Path
    deadline: float

    def run(self, labels: Mapping[str, Any], ahead: bool = False) -> Record | None:
        """What a child found out; its last words where it failed.

        When the budget is spent, what was found out ahead; None if that is nothing.
        """
        options = self.options
        folder = self.folder / "-".join(str(label) for label in labels.values())
        folder.mkdir(exist_ok=True)
        record: Record = {**labels, "precision": options.precision}
        left = self.deadline - time.monotonic()
        if left <= 0:
            stages = sorted(folder.glob("*_stage.json"))
            for stage in stages:
                record |= json.loads(stage.read_text())
            return record if stages else None
        job = record | {
            "device": options.device,
            "rounds": options.rounds,
            "verify": options.verify,
            "full": options.full,
            "compile": not options.no_compile,
            "autotune": not options.no_autotune,
            "ahead": ahead,
            "threads": max(1, CORES // (CORES if ahead else options.jobs)),
            "lock": str(self.folder / "device.lock"),
            "folder": str(folder),
        }
        out, why = self.wait_for(job, min(left, options.limit))
        for line in out.splitlines():
            with contextlib.suppress(ValueError):
                record |= json.loads(line)
        return record | ({"problem": why} if why else {})

    def wait_for(self, job: Job, limit: float) -> tuple[str, str]:
        """What a child printed, and why it did not come to its end."""
        command = [sys.executable, self.script, "--child", json.dumps(job)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(command, text=True, **pipes)  # type: ignore[call-overload]
        try:
            out, err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.communicate()[0], f"stopped after {limit:.0f} s"
        if not process.returncode:
            return out, ""
        last = next((x for x in reversed(err.splitlines()) if x.strip()), "it ended")
        return out, last[-300:]


def run_all(
    script: str,
    options: Any,
    waiting: Sequence[Mapping[str, Any]],
    sheet: Sheet,
    cells: Callable[[Record], list[str]],
    save: Callable[[], None],
) -> None:
    """A child for each of the waiting; a line of progress and the files after each.

    With `--ahead` there are two: what is certified is written before anything is timed, since a
    run may be cut off in between. One that fails ahead says so again when it is timed.
    """
    writing = threading.Lock()
    before = len(sheet.rows)
    total = before + len(waiting)

    def one(parent: Parent, ahead: bool, numbers: Iterator[int], labels: Mapping[str, Any]) -> None:
        started = time.monotonic()
        record = parent.run(labels, ahead)
        took = time.monotonic() - started
        with writing:
            if record is None:
                told = " ".join(str(label) for label in labels.values())
                print(f"{told}: not run, the budget is spent", file=sys.stderr)
                return
            sheet.put(labels, cells(record), record)
            count = f"[{next(numbers)}/{total}]{' ahead' * ahead} {took:.0f} s:"
            why = record.get("problem", "")
            print(count, " | ".join(cells(record)), why, file=sys.stderr, flush=True)
            save()

    with tempfile.TemporaryDirectory() as folder:
        parent = Parent(script, options, Path(folder), time.monotonic() + options.budget)
        for ahead in (True, False) if options.ahead else (False,):
            child = partial(one, parent, ahead, itertools.count(before + 1))
            with ThreadPoolExecutor(CORES if ahead else options.jobs) as pool:
                list(pool.map(child, waiting))
