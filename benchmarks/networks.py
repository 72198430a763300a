"""Whole networks in train and eval mode: compile and build times, certificates, speed.

Each network and mode is a process of its own (children.py) that compiles, imports the emitted file
with an empty cache and with a full one, certifies it (a quick run of verify), and times it beside
eager and torch.compile in turns.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import network_files
import torch
from children import (
    Record,
    add_options,
    compile_stage,
    device_lock,
    go_through,
    known,
    run_all,
    verify_stage,
)
from measuring import in_turns, kernel_clock, published
from sheet import Sheet, file_stem

from kernelwright.bench.clock import device_name
from kernelwright.bench.context import matmul_precision
from kernelwright.bench.inputs import make_sets
from kernelwright.bench.variants import direct, load_candidate
from kernelwright.formats.evaluator import synchronous_ms
from kernelwright.problem import Problem, in_mode, load_problem, resolve_device

HERE = Path(__file__).resolve().parent
NETWORKS = network_files.networks(small=False)
MODES = ("train", "eval")
COLUMNS = (
    "network", "mode", "optimize s", "import s", "again s", "kernels", "certified",
    "GPU eager", "GPU compile", "GPU ours", "/ eager", "/ compile",
    "sync eager", "sync compile", "sync ours", "sync / best",
)  # fmt: skip
IMPORT = """
import sys, time, torch, torch.utils.cpp_extension
started = time.perf_counter()
exec(compile(open(sys.argv[1]).read(), sys.argv[1], "exec"), {"__name__": "emitted"})
print(time.perf_counter() - started)
"""


# ---- the child: one network, one mode ------------------------------------------------------------


def child(job: dict[str, Any]) -> None:
    source = network_files.write(NETWORKS[job["network"]], job["network"], Path(job["folder"]))
    last = warm_stage if job["ahead"] else time_stage
    go_through(job, source, (compile_stage, import_stage, verify_stage, last))


def import_stage(job: dict[str, Any], source: Path, emitted: Path) -> dict[str, Any]:
    """Seconds of a first and of a second import, each in a new process; torch is there before."""
    seconds = []
    for _ in range(2):
        command = [sys.executable, "-c", IMPORT, str(emitted)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"the emitted file could not be imported: {done.stderr[-2000:]}")
        seconds.append(float(done.stdout.splitlines()[-1]))
    return {"import_s": seconds[0], "again_s": seconds[1]}


def warm_stage(job: dict[str, Any], source: Path, emitted: Path) -> dict[str, Any]:
    """Fill the cache of torch.compile that all children share."""
    problem = in_mode(load_problem(source, job["device"], job["precision"]), job["mode"] == "train")
    with matmul_precision(problem.precision):
        if job["compile"]:
            compiled_call(job, problem)
    return {}


def compiled_call(job: dict[str, Any], problem: Problem) -> Callable[..., Any]:
    """torch.compile, called without gradients and with them."""
    call: Callable[..., Any] = torch.compile(problem.module)
    with device_lock(Path(job["lock"]), alone=False):
        for grad in (False, True):
            with torch.set_grad_enabled(grad):
                call(*problem.inputs)
    return call


def time_stage(job: dict[str, Any], source: Path, emitted: Path) -> dict[str, Any]:
    problem = in_mode(load_problem(source, job["device"], job["precision"]), job["mode"] == "train")
    candidate = load_candidate(problem, emitted)
    calls: dict[str, Callable[..., Any]] = {"eager": problem.module, "ours": candidate}
    with matmul_precision(problem.precision):
        if job["compile"]:
            calls["compile"] = compiled_call(job, problem)
        with device_lock(Path(job["lock"]), alone=True):
            clock = kernel_clock(problem.device)
            sets = make_sets(problem.inputs, None, clock.flush_bytes)
            with torch.no_grad():
                variants = [direct(name, call, sets) for name, call in calls.items()]
                gpu = in_turns(variants, clock, job["rounds"])
            inputs = list(problem.inputs)
            synchronous = {
                name: synchronous_ms(call, inputs, problem.device, job["rounds"], grad=True)
                for name, call in calls.items()
            }
    return {
        "gpu_ms": {name: times.ms for name, times in gpu.items()},
        "sync_ms": synchronous,
        "fallbacks": dict(candidate.fallbacks),
    }


# ---- the parent ----------------------------------------------------------------------------------


def cells(record: Record) -> list[str]:
    def number(name: str, digits: int) -> str:
        return f"{record[name]:.{digits}f}" if name in record else "-"

    gpu, sync = record.get("gpu_ms", {}), record.get("sync_ms", {})
    certified = {True: "yes", False: "NO", None: "-"}[record.get("certified")]
    row = [record["network"], record["mode"]]
    row += [number("optimize_s", 1), number("import_s", 1), number("again_s", 2)]
    row += [str(record.get("kernels", "-")), certified]
    row += [f"{gpu[name]:.3f}" if name in gpu else "-" for name in ("eager", "compile", "ours")]
    row += [f"{gpu[n] / gpu['ours']:.2f}x" if n in gpu else "-" for n in ("eager", "compile")]
    row += [f"{sync[name]:.3f}" if name in sync else "-" for name in ("eager", "compile", "ours")]
    best = min((v for k, v in sync.items() if k != "ours"), default=None)
    row.append(f"{best / sync['ours']:.2f}x" if best else "-")
    if record.get("fallbacks"):
        row[0] += " (FELL BACK)"
    if "problem" in record:
        row[0] += " (FAILED)"
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add_options(parser, limit=120.0, budget=3600.0)
    parser.add_argument("--results", metavar="DIR", default=str(HERE / "results"))
    parser.add_argument("--name", default="networks", help="of the files: HARDWARE-NAME.md, .json")
    parser.add_argument("--only", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    options = parser.parse_args()
    if options.child:
        child(options.child)
        return
    device = resolve_device(options.device)
    options.device = str(device)
    options.name += "" if options.precision == "highest" else f"-{options.precision}"
    earlier = Path(options.results) / f"{file_stem(device_name(device))}-{options.name}.json"
    sheet = Sheet(f"Networks at {options.precision}, ms", COLUMNS)
    wanted = [{"network": n, "mode": mode} for n in options.only for mode in options.modes]
    for record in known(earlier, sheet.title) if options.resume else []:
        if "sync_ms" in record:
            sheet.add(cells(record), record)
    done = [{"network": r["network"], "mode": r["mode"]} for r in sheet.record]
    waiting = [labels for labels in wanted if labels not in done]
    with published(options, device, "Whole networks", sheet) as save:
        run_all(__file__, options, waiting, sheet, cells, save)


if __name__ == "__main__":
    main()
