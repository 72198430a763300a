"""The main job, three times: each founding model from its file to a certified, timed ModelNew.

Uses the GPU when there is one. On the CPU the models are timed with 64 rows instead of 1024 and
certified with fewer cases of each check, two of them side by side, so that the whole takes about
two minutes on two cores; the clocks run alone. Results go to build/demo, with a page to look at.
"""

import json
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kernelwright.bench.runner import bench
from kernelwright.cli import main as command
from kernelwright.commands import optimize_file
from kernelwright.errors import KernelwrightError
from kernelwright.ledger import LedgerRow
from kernelwright.report.output import Output
from kernelwright.report.tables import ledger_table, summary_table
from kernelwright.verify.certificate import Certificate
from kernelwright.verify.render import render

EXAMPLES = Path(os.path.relpath(Path(__file__).parent))
BUILD = Path(os.path.relpath(Path(__file__).parents[1] / "build" / "demo"))
SHOWN = "gemm_groupnorm_min_bias"  # the one whose page is drawn


@dataclass(frozen=True)
class Made:
    """One model's file, as the process that made it tells of it; no file if it was refused."""

    name: str
    output: Path | None
    ledger: tuple[LedgerRow, ...]
    certificate: Certificate
    record: dict[str, Any]


def main() -> int:
    started = time.perf_counter()
    on_gpu = torch.cuda.is_available()
    output = Output()
    BUILD.mkdir(parents=True, exist_ok=True)
    models = {model.parent.name: model for model in sorted(EXAMPLES.glob("*/model.py"))}
    output.show(f"{len(models)} models: compiled and certified first, then timed one by one.")
    results, records = [], {}
    try:
        for made in all_made(list(models.values()), on_gpu):
            output.show(f"\n[bold]{made.name}[/bold]")
            output.show(ledger_table(made.ledger))
            output.show(render(made.certificate))
            if made.output is None:
                output.error(f"{made.name} failed verification.")
                return 3
            records[made.name] = made
        for name, model in models.items():
            output.progress("demo", f"{name} is timed")
            timings = bench(
                model,
                records[name].output,
                batch=None if on_gpu else 64,
                baselines=None if on_gpu else ("eager", "compile"),
                seconds=1.5,
                progress=output.progress,
            )
            results.append((name, True, timings))
            records[name].record["timings"] = timings.to_json()
    except KernelwrightError as error:
        output.error(str(error))
        return error.exit_code
    page = drawn(records[SHOWN])
    output.show(summary_table(results))
    rows = "as in the files" if on_gpu else "64 rows (of 1024), fewer cases of each check"
    device = results[0][2].device
    output.show(f"{device}; {rows}; {time.perf_counter() - started:.0f} s in all.")
    output.show(
        "Each ModelNew computes what its Model does, as the certificates say, in the time under "
        f"`ours`.\nOpen {BUILD}/{SHOWN}_new.py: the model, its kernels and why each is there; "
        f"or look at {page}.\nYour own model: kernelwright optimize your_model.py"
    )
    return 3 if any(timings.problems for *_, timings in results) else 0


def all_made(models: list[Path], on_gpu: bool) -> Any:
    """Each model as soon as it is certified; threads that share cores must not spin."""
    waiting = os.environ.get("OMP_WAIT_POLICY")
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1 if on_gpu else 2, mp_context=spawned) as pool:
        jobs = [pool.submit(made, model, on_gpu) for model in models]
        for job in as_completed(jobs):
            yield job.result()
    if waiting is None:
        del os.environ["OMP_WAIT_POLICY"]
    else:
        os.environ["OMP_WAIT_POLICY"] = waiting


def made(model: Path, on_gpu: bool) -> Made:
    """Compiled and certified, in a process of its own."""
    name, output = model.parent.name, Output()
    outcome = optimize_file(
        model,
        BUILD / f"{name}_new.py",
        quick=not on_gpu,
        time_it=False,
        progress=lambda step, told: output.progress(step, f"{told}  ({name})"),
    )
    assert outcome.certificate is not None
    ledger = outcome.compiled.ledger
    return Made(name, outcome.output, ledger, outcome.certificate, outcome.to_json())


def drawn(made: Made) -> Path:
    """The page of one model, of what was found out above."""
    record, page = BUILD / f"{made.name}.json", BUILD / f"{made.name}.html"
    whole = {"schema": 1, "command": "optimize", "error": None, **made.record}
    record.write_text(json.dumps(whole))
    command(["report", str(record), "-o", str(page), "--quiet"])
    return page


if __name__ == "__main__":
    sys.exit(main())
