"""The main job, three times: each founding model from its file to a certified, timed ModelNew.

Uses the GPU when there is one. On the CPU the models are timed with 64 rows instead of 1024 and
certified with fewer cases of each check, so that the whole takes about four minutes on two cores.
Results go to build/demo.
"""

import os
import sys
import time
from pathlib import Path

import torch

from kernelwright.bench import bench
from kernelwright.commands import optimize_file
from kernelwright.errors import KernelwrightError
from kernelwright.report import Output, ledger_table, summary_table
from kernelwright.verify.render import render

EXAMPLES = Path(os.path.relpath(Path(__file__).parent))
BUILD = Path(os.path.relpath(Path(__file__).parents[1] / "build" / "demo"))


def main() -> int:
    started = time.perf_counter()
    on_gpu = torch.cuda.is_available()
    output = Output()
    BUILD.mkdir(parents=True, exist_ok=True)
    results = []
    for model in sorted(EXAMPLES.glob("*/model.py")):
        name = model.parent.name
        output.show(f"\n[bold]{name}[/bold]")
        try:
            outcome = optimize_file(
                model,
                BUILD / f"{name}_new.py",
                quick=not on_gpu,
                time_it=False,
                progress=output.progress,
                on_compiled=lambda compiled: output.show(ledger_table(compiled.ledger)),
                on_certified=lambda certificate: output.show(render(certificate)),
            )
            if outcome.output is None:
                output.error(f"{name} failed verification.")
                return 3
            timings = bench(
                model,
                outcome.output,
                batch=None if on_gpu else 64,
                baselines=None if on_gpu else ("eager", "compile"),
                seconds=1.5,
                progress=output.progress,
            )
        except KernelwrightError as error:
            output.error(str(error))
            return error.exit_code
        results.append((name, True, timings))
    output.show(summary_table(results))
    rows = "as in the files" if on_gpu else "64 rows (of 1024), fewer cases of each check"
    device = results[0][2].device
    output.show(f"{device}; {rows}; {time.perf_counter() - started:.0f} s in all; files in {BUILD}")
    return 3 if any(timings.problems for *_, timings in results) else 0


if __name__ == "__main__":
    sys.exit(main())
