"""A task in the form of its own public evaluator: what that asks for, in its words and figures.

In: a task and its candidate. Out: what the evaluator said. KernelBot's is the one that the task's
folder names, run as the bot runs it, in nanoseconds; KernelBench's is ours after its description
(formats/evaluator.py), in milliseconds. Other forms have none that can be had as a file.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernelwright.formats import Case, kernelbot
from kernelwright.formats.posed import first_text
from kernelwright.sweep.child import KEPT
from kernelwright.sweep.task import Task

SECONDS = 600.0
SEED = 42
FIGURES = ("runs", "mean", "std", "err", "best", "worst")
LAST = 300


def evaluated(task: Task, folder: Path, cases: Sequence[Case]) -> dict[str, Any] | None:
    """What the evaluator of the task's form found; None where there is none."""
    if task.problem.form == "kernelbot":
        return _by_kernelbot(task, folder, cases)
    if task.problem.form == "kernelbench":
        return _by_kernelbench(task, folder)
    return None


def _submission(task: Task, folder: Path, name: str) -> str:
    """As it was handed in, or ours in the problem's form."""
    return first_text(task.answer) if task.answer else (folder / KEPT / name).read_text()


def _by_kernelbot(task: Task, folder: Path, cases: Sequence[Case]) -> dict[str, Any]:
    """The tests first; the benchmarks of what passed them."""
    if kernelbot.EVALUATOR not in task.problem.files:
        return {"passed": False, "why": f"the task names no {kernelbot.EVALUATOR}"}
    place = folder / "harness"
    kernelbot.lay_out(task.problem, _submission(task, folder, kernelbot.SUBMISSION), place)
    tests = [case for case in cases if not case.timed]
    timed = [case for case in cases if case.timed]
    found: dict[str, Any] = {"passed": True}
    for mode, chosen in (("test", tests), ("benchmark", timed)):
        if not chosen:
            continue
        code, said = kernelbot.run_evaluator(place, mode, chosen, SEED, SECONDS)
        if code != kernelbot.PASSED or said.get("check") != "pass":
            log = (place / f"{mode}.log").read_text(errors="replace")[-LAST:]
            why = next((v for k, v in said.items() if k.endswith(".error")), log)
            return {"passed": False, "why": f"{mode} ended with {code}: {why}"}
        if mode == "benchmark":
            found["benchmarks"] = [_figures(said, i, case) for i, case in enumerate(timed)]
            means = [b["mean"] for b in found["benchmarks"]]
            found["geometric_mean_ns"] = math.exp(sum(map(math.log, means)) / len(means))
    return found


def _figures(said: dict[str, str], index: int, case: Case) -> dict[str, Any]:
    prefix = f"benchmark.{index}."
    values = {name: float(said[prefix + name]) for name in FIGURES if prefix + name in said}
    return {"case": case.label, **values}


def _by_kernelbench(task: Task, folder: Path) -> dict[str, Any]:
    """In a process of its own: the evaluator runs both files side by side."""
    import torch

    device = task.options.device
    device = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    candidate, out = folder / "harness_candidate.py", folder / "harness.json"
    candidate.write_text(_submission(task, folder, "model_new.py"))
    model = folder / "case0" / "model.py"
    command = [
        sys.executable,
        "-m",
        "kernelwright.formats.evaluator",
        *map(str, (model, candidate)),
    ]
    ran = subprocess.run([*command, device, str(out)], capture_output=True, timeout=SECONDS)
    if ran.returncode:
        why = ran.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return {"passed": False, "why": f"it ended with {ran.returncode}: {' '.join(why)}"}
    found: dict[str, Any] = json.loads(out.read_text())
    return {"passed": found["compiled"] and found["correctness"], **found}
