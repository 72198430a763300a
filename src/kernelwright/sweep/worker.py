"""What happens to one task, in its own process: made or judged, certified, timed, written down.

In: the task's folder. Out: result.json in it, complete after each stage, and what is to be kept.
Each case of a problem is a file with Model of its own; the task passes if all of them do, and its
speed is the geometric mean of those that are timed. Only here is code of a problem run, and that of
a candidate in the processes of verify and bench alone.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelwright.errors import (
    BuildError,
    InputError,
    InternalError,
    UnsupportedError,
    VerificationError,
)
from kernelwright.failures import unexpected
from kernelwright.formats import Case, form_named
from kernelwright.formats.posed import write_files
from kernelwright.sweep.child import KEPT, RESULT, TASK
from kernelwright.sweep.devices import Device, name_of
from kernelwright.sweep.task import PASSED, Row, Task

if TYPE_CHECKING:
    from kernelwright.bench.timings import Timings
    from kernelwright.verify.certificate import Certificate

STATUS_OF = {
    InputError: "input",
    UnsupportedError: "unsupported",
    BuildError: "build",
    VerificationError: "wrong",
    InternalError: "bug",
}
MODEL, OURS = "model.py", "model_new.py"
THREADS = "OMP_NUM_THREADS"


@dataclass
class Bench:
    """Where a task works: its folder, its device, and who hears how far it is."""

    task: Task
    folder: Path
    device: Device
    tell: Callable[[str], None]
    found: Row = field(default_factory=dict)

    def write(self, **found: Any) -> None:
        """What is known by now; the file is whole at every moment."""
        self.found |= found
        stage = self.folder / f"{RESULT}.new"
        stage.write_text(self._without_folder(json.dumps(self.found, default=str)))
        os.replace(stage, self.folder / RESULT)

    def keep(self, name: str, text: str) -> None:
        (self.folder / KEPT).mkdir(exist_ok=True)
        path = self.folder / KEPT / name
        path.write_text(self._without_folder(text), encoding="utf-8", errors="surrogateescape")

    def step(self, name: str, summary: str) -> None:
        """A pass or a check has ended; somebody may be waiting for the device."""
        self.device.pause()

    def _without_folder(self, text: str) -> str:
        """Names of files as the user knows them: the folder is gone when they are read."""
        return text.replace(f"{self.folder}/", "")


def main() -> int:
    """Called by the guard with the folder and the descriptor of words."""
    folder, words = Path(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(words, False)

    def tell(word: str) -> None:
        with contextlib.suppress(OSError):
            os.write(words, f"{word}\n".encode())

    task = Task.from_json(json.loads((folder / TASK).read_text()))
    with Device(name_of(task.options.device), tell) as device:
        bench = Bench(task, folder, device, tell)
        try:
            status, reason = work(bench)
        except Exception as error:
            failure = unexpected(error, None)
            status, reason = STATUS_OF[type(failure)], " ".join(str(failure).split())
        bench.write(status=status, reason=reason, alone=round(device.seconds, 3))
    return 0


def work(bench: Bench) -> tuple[str, str]:
    """All cases, one after the other; the first that fails is the reason."""
    task = bench.task
    form = form_named(task.problem.form)
    bench.tell("reading the problem")
    cases, results = _cases(bench), []
    for number, case in enumerate(cases):
        place = bench.folder / f"case{number}"
        write_files(task.problem.files, place)
        (place / MODEL).write_text(
            form.model(task.problem, case), encoding="utf-8", errors="surrogateescape"
        )
        result = one_case(bench, place, case, f" in case {case.label}" if len(cases) > 1 else "")
        results.append(result)
        bench.write(cases=results, **summed(results))
        if result["status"] != PASSED:
            where = f"Case {case.label}: " if len(cases) > 1 else ""
            return result["status"], where + result["reason"]
    if task.options.harness:
        _in_harness(bench, cases)
    return PASSED, ""


def one_case(bench: Bench, place: Path, case: Case, where: str) -> dict[str, Any]:
    """Made or taken, certified, and timed."""
    options, result = bench.task.options, {"case": case.label, "status": PASSED, "reason": ""}
    model = place / MODEL
    with share_of_cores():
        candidate, certificate = (_taken if bench.task.answer else _made)(bench, place, where)
        result |= bench.found.get("made", {})
        if certificate is not None:
            result |= _certified(bench, certificate)
            if not certificate.passed:
                return result | {"status": "wrong", "reason": _why(certificate)}
    if options.bench and case.timed:
        bench.tell(f"timing{where}")
        timings = _timed(bench, model, candidate)
        result |= _speeds(timings)
        bench.keep("timings.json", json.dumps(timings.to_json(), indent=2, default=str))
        if timings.problems:
            return result | {"status": "invalid", "reason": timings.problems[0]}
    return result


def _made(bench: Bench, place: Path, where: str) -> tuple[Path, Certificate | None]:
    """Ours: compiled and certified, and kept with a submission in the problem's own form."""
    from kernelwright.commands import optimize_file

    task, options, target = bench.task, bench.task.options, place / OURS
    bench.tell(f"compiling{where}")
    outcome = optimize_file(
        place / MODEL,
        target,
        device=options.device,
        precision=options.precision,
        training=options.training,
        verify=options.verify,
        quick=options.quick,
        time_it=False,
        progress=bench.step,
        on_compiled=lambda compiled: bench.tell(f"certifying{where}"),
    )
    compiled = outcome.compiled
    bench.found["made"] = {
        "kernels": len(compiled.kernels),
        "steps": len(compiled.planned.regions),
        "fused": compiled.fused,
    }
    bench.keep(OURS, compiled.source)
    for name, text in (
        form_named(task.problem.form).submission(task.problem, compiled.source).items()
    ):
        bench.keep(name, text)
    return target, outcome.certificate


def _taken(bench: Bench, place: Path, where: str) -> tuple[Path, Certificate | None]:
    """Somebody's: as it was handed in, with ModelNew behind it where it has none."""
    from kernelwright.commands import verify_files

    task, options = bench.task, bench.task.options
    bench.tell(f"certifying{where}")
    answer = form_named(task.problem.form).candidate(task.problem, task.answer)
    write_files(answer, place)
    candidate = place / next(iter(answer))
    if not options.verify:
        return candidate, None
    return candidate, verify_files(
        place / MODEL,
        candidate,
        options.device,
        options.precision,
        options.quick,
        bench.step,
        options.training,
    )


def _certified(bench: Bench, certificate: Certificate) -> dict[str, Any]:
    bench.keep("certificate.json", json.dumps(certificate.to_json(), indent=2, default=str))
    return {
        "verdict": certificate.verdict,
        "certified": certificate.passed,
        "level": certificate.level,
    }


def _why(certificate: Certificate) -> str:
    """The first check that failed, with what it found."""
    failures = certificate.failures
    return f"{failures[0].name}: {failures[0].detail}" if failures else certificate.verdict


def _timed(bench: Bench, model: Path, candidate: Path) -> Timings:
    from kernelwright.bench.runner import bench as time_files

    options = bench.task.options
    return time_files(
        model,
        candidate,
        options.device,
        options.precision,
        baselines=options.baselines,
        seconds=options.seconds,
        progress=bench.step,
        training=options.training,
        alone=bench.device.alone,
    )


def _speeds(timings: Timings) -> dict[str, Any]:
    ms = {row.name: row.median_ms for row in timings.rows if row.median_ms is not None}
    return {"ms": ms, "speedup": timings.over_eager, "on": timings.device}


def summed(results: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of a task: geometric means over its timed cases."""
    timed = [result for result in results if result.get("speedup")]
    names = set.intersection(*(set(result["ms"]) for result in timed)) if timed else set()
    found: dict[str, Any] = {
        "speedup": geometric_mean([result["speedup"] for result in timed]),
        "ms": {name: geometric_mean([r["ms"][name] for r in timed]) for name in sorted(names)},
    }
    for name in ("kernels", "fused", "certified", "verdict"):
        values = [result[name] for result in results if name in result]
        if values:
            found[name] = values[-1] if name == "verdict" else min(values)
    if levels := [result["level"] for result in results if "level" in result]:
        found["level"] = min(levels, key=_height)
    if timed:
        found["on"] = timed[-1]["on"]
    return found


def _height(level: str | None) -> int:
    from kernelwright.verify.certificate import LEVELS

    return -1 if level is None else LEVELS.index(level)


def geometric_mean(values: list[float]) -> float | None:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def _cases(bench: Bench) -> list[Case]:
    """Those that the problem's files name; get_cases() has to be called to be counted."""
    problem = bench.task.problem
    cases = form_named(problem.form).cases(problem)
    if cases is not None:
        return cases
    from kernelwright.loading import load_source

    place = bench.folder / "counted"
    write_files(problem.files, place)
    module = load_source(place / problem.main)
    count = len(list(module.get_cases()))
    if not count:
        raise InputError(f"get_cases() in {problem.main} returned nothing; return at least one.")
    return [Case(str(number), {"number": number}) for number in range(count)]


def _in_harness(bench: Bench, cases: list[Case]) -> None:
    """The problem's own evaluator, which asks for timings of its own."""
    from kernelwright.sweep.harness import evaluated

    bench.tell("waiting for its evaluator")
    with bench.device.alone():
        bench.tell("running its evaluator")
        bench.write(harness=evaluated(bench.task, bench.folder, cases))


@contextlib.contextmanager
def share_of_cores() -> Iterator[None]:
    """As many threads as leave room for the other tasks; what is timed has all cores."""
    import torch

    before, here = os.environ.get(THREADS), torch.get_num_threads()
    threads = max(1, min(here, int(os.environ.get("KERNELWRIGHT_THREADS", here))))
    os.environ[THREADS] = str(threads)
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(here)
        os.environ.pop(THREADS)
        if before is not None:
            os.environ[THREADS] = before


if __name__ == "__main__":
    sys.exit(main())
