"""Whole networks in train and eval mode: compile and build times, certificates, speed.

Each network and mode is a process of its own that compiles, imports the emitted file with an empty
cache and with a full one, certifies it (a quick run of verify), and times it beside eager and
torch.compile in turns. Several processes may run side by side; while one of them times, the others
keep off the device. What is there is written after every network, and `--resume` goes on from it.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import network_files
import torch
from measuring import in_turns, kernel_clock, published
from sheet import Sheet, file_stem

from kernelwright.bench.clock import device_name
from kernelwright.problem import resolve_device

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


@contextlib.contextmanager
def device_lock(path: Path, alone: bool) -> Iterator[None]:
    """The device for oneself, or shared with others who do not time."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


def child(job: dict[str, Any]) -> None:
    """Print what is known after each stage, as one line of JSON."""
    folder = Path(job["folder"])
    os.environ["TORCH_EXTENSIONS_DIR"] = str(folder / "extensions")
    source = network_files.write(NETWORKS[job["network"]], job["network"], folder)
    emitted = folder / "model_new.py"
    for stage in (_compile, _import, _verify, _time):
        print(json.dumps(stage(job, source, emitted)), flush=True)


def _compile(job: dict[str, Any], source: Path, emitted: Path) -> dict[str, Any]:
    from kernelwright.commands import compile_file

    started = time.perf_counter()
    compiled = compile_file(
        source, job["device"], job["precision"], training=job["mode"] == "train"
    )
    seconds = time.perf_counter() - started
    emitted.write_text(compiled.source)
    left = Counter(row.op for row in compiled.ledger if row.fate == "aten")
    return {
        "optimize_s": seconds,
        "kernels": len(compiled.kernels),
        "steps": len(compiled.planned.regions),
        "lines": len(compiled.source.splitlines()),
        "left_to_aten": dict(left),
        "mode_of_graph": compiled.captured.mode,
    }


def _import(job: dict[str, Any], source: Path, emitted: Path) -> dict[str, Any]:
    """Seconds of a first and of a second import, each in a new process; torch is there before."""
    seconds = []
    for _ in range(2):
        command = [sys.executable, "-c", IMPORT, str(emitted)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"the emitted file could not be imported: {done.stderr[-2000:]}")
        seconds.append(float(done.stdout.splitlines()[-1]))
    return {"import_s": seconds[0], "again_s": seconds[1]}


def _verify(job: dict[str, Any], source: Path, emitted: Path) -> dict[str, Any]:
    if not job["verify"]:
        return {}
    from kernelwright.verify.session import verify

    with device_lock(Path(job["lock"]), alone=False):
        certificate = verify(
            source,
            emitted,
            job["device"],
            job["precision"],
            quick=True,
            time_limit=job["verify"],
            training=job["mode"] == "train",
        )
    failed = [str(check) for check in certificate.failures]
    return {"certified": certificate.passed, "verdict": certificate.verdict, "failed": failed}


def _time(job: dict[str, Any], source: Path, emitted: Path) -> dict[str, Any]:
    from evaluator import synchronous_ms

    from kernelwright.bench.context import matmul_precision
    from kernelwright.bench.inputs import make_sets
    from kernelwright.bench.variants import direct, load_candidate
    from kernelwright.problem import in_mode, load_problem

    problem = in_mode(load_problem(source, job["device"], job["precision"]), job["mode"] == "train")
    candidate = load_candidate(problem, emitted)
    calls: dict[str, Callable[..., Any]] = {"eager": problem.module, "ours": candidate}
    lock = Path(job["lock"])
    with matmul_precision(problem.precision):
        if job["compile"]:
            compiled = torch.compile(problem.module)
            with device_lock(lock, alone=False), torch.no_grad():
                compiled(*problem.inputs)
            with device_lock(lock, alone=False):
                compiled(*problem.inputs)
            calls["compile"] = compiled
        with device_lock(lock, alone=True):
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


@dataclasses.dataclass
class Clockwork:
    """What children share, and when there is no time left for another one."""

    options: Any
    folder: Path
    deadline: float

    def run(self, network: str, mode: str) -> dict[str, Any] | None:
        left = self.deadline - time.monotonic()
        if left <= 0:
            return None
        options = self.options
        job = {
            "network": network,
            "mode": mode,
            "precision": options.precision,
            "device": options.device,
            "rounds": options.rounds,
            "verify": options.verify,
            "compile": not options.no_compile,
            "lock": str(self.folder / "device.lock"),
            "folder": str(self.folder / f"{network}-{mode}"),
        }
        Path(job["folder"]).mkdir()
        command = [sys.executable, __file__, "--child", json.dumps(job)]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        why = ""
        try:
            out, err = process.communicate(timeout=min(left, options.limit))
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            why = f"stopped after {min(left, options.limit):.0f} s"
        record: dict[str, Any] = {"network": network, "mode": mode, "precision": options.precision}
        for line in out.splitlines():
            with contextlib.suppress(ValueError):
                record |= json.loads(line)
        if process.returncode and not why:
            why = next((x for x in reversed(err.splitlines()) if x.strip()), "it ended")[-300:]
        return record | ({"problem": why} if why else {})


def cells(record: dict[str, Any]) -> list[str]:
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


def known(path: Path, precision: str) -> dict[tuple[str, str], dict[str, Any]]:
    """What an earlier run measured to the end."""
    if not path.is_file():
        return {}
    rows = [row for part in json.loads(path.read_text())["parts"].values() for row in part]
    return {
        (row["network"], row["mode"]): row
        for row in rows
        if row["precision"] == precision and "sync_ms" in row
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--results", metavar="DIR", default=str(HERE / "results"))
    parser.add_argument("--name", default="networks", help="of the files: HARDWARE-NAME.md, .json")
    parser.add_argument("--precision", choices=("highest", "high"), default="highest")
    parser.add_argument("--only", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--jobs", type=int, default=1, help="networks at the same time")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--verify", type=float, metavar="SECONDS", default=60.0, help="0: do not")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for each network")
    parser.add_argument("--budget", type=float, default=3600.0, help="seconds for all")
    parser.add_argument("--resume", action="store_true", help="keep what the results file has")
    parser.add_argument("--child", type=json.loads, help="for the script itself")
    options = parser.parse_args()
    if options.child:
        child(options.child)
        return
    device = resolve_device(options.device)
    options.device = str(device)
    options.name += "" if options.precision == "highest" else f"-{options.precision}"
    stem = f"{file_stem(device_name(device))}-{options.name}"
    done = known(Path(options.results) / f"{stem}.json", options.precision)
    done = done if options.resume else {}
    wanted = [(network, mode) for network in options.only for mode in options.modes]
    sheet = Sheet(f"Networks at {options.precision}, ms", COLUMNS)
    for record in done.values():
        sheet.add(cells(record), record)
    waiting = [pair for pair in wanted if pair not in done]
    writing = threading.Lock()
    with (
        tempfile.TemporaryDirectory() as folder,
        published(options, device, "Whole networks", sheet) as save,
        ThreadPoolExecutor(options.jobs) as pool,
    ):
        clockwork = Clockwork(options, Path(folder), time.monotonic() + options.budget)

        def one(pair: tuple[str, str]) -> None:
            started = time.monotonic()
            record = clockwork.run(*pair)
            with writing:
                if record is None:
                    print(f"{' '.join(pair)}: not run, the budget is spent", file=sys.stderr)
                    return
                sheet.add(cells(record), record)
                took = time.monotonic() - started
                count = f"[{len(sheet.rows)}/{len(wanted)}] {took:.0f} s:"
                why = record.get("problem", "")
                print(count, " | ".join(cells(record)), why, file=sys.stderr, flush=True)
                save()

        list(pool.map(one, waiting))


if __name__ == "__main__":
    main()
