"""What each command does, without its printing: paths in, results out.

`optimize_file` is the whole pipeline on one file. Nothing appears under the output's name before it
is certified: the source is verified in a temporary file beside it and then renamed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelwright.bench import Timings, bench
from kernelwright.errors import InputError
from kernelwright.files import check_writable, staged
from kernelwright.import_check import check_imports
from kernelwright.problem import load_problem, resolve_device
from kernelwright.toolchain import check_toolchain

if TYPE_CHECKING:
    from kernelwright.pipeline import Compiled
    from kernelwright.verify import Certificate

Progress = Callable[[str, str], None]


@dataclass(frozen=True)
class Outcome:
    """What `optimize` made of one file; `output` is None if the candidate was not certified."""

    compiled: Compiled
    output: Path | None
    certificate: Certificate | None
    timings: Timings | None

    def to_json(self) -> dict[str, Any]:
        return {
            "output": str(self.output) if self.output else None,
            "plan": self.compiled.to_json(),
            "certificate": self.certificate.to_json() if self.certificate else None,
            "timings": self.timings.to_json() if self.timings else None,
        }


def optimize_file(
    model: str | Path,
    output: str | Path | None = None,
    *,
    device: str = "auto",
    precision: str = "current",
    verify: bool = True,
    quick: bool = False,
    time_it: bool = True,
    batch: int | None = None,
    tune: bool = False,
    progress: Progress | None = None,
    on_compiled: Callable[[Compiled], None] | None = None,
    on_certified: Callable[[Certificate], None] | None = None,
) -> Outcome:
    """Compile a model file, certify the result, put it in place, and time it.

    The two callbacks hear of a result as soon as it is there, before the next long step.
    """
    model = Path(model)
    target = Path(output) if output else model.with_name(f"{model.stem}_new.py")
    check_writable(target)
    if target.exists() and model.exists() and target.samefile(model):
        raise InputError(f"The output {target} is the model file itself; choose another with -o.")
    compiled = compile_file(model, device, precision, progress, tune)
    if (verify or time_it) and "load_inline(" in compiled.source:
        check_toolchain(resolve_device(device).type)
    if on_compiled:
        on_compiled(compiled)
    certificate = None
    with staged(target, compiled.source) as stage:
        check_imports(stage, model)
        if verify:
            certificate = verify_files(model, stage, device, precision, quick, progress)
            certificate = replace(certificate, candidate=str(target))
            if on_certified:
                on_certified(certificate)
            if not certificate.passed:
                return Outcome(compiled, None, certificate, None)
        os.replace(stage, target)
    timings = None
    if time_it:
        timings = bench(model, target, device, precision, batch=batch, progress=progress)
    return Outcome(compiled, target, certificate, timings)


def compile_file(
    model: str | Path,
    device: str,
    precision: str,
    progress: Progress | None = None,
    tune: bool = False,
) -> Compiled:
    problem = load_problem(model, device, precision)
    from kernelwright.pipeline import compile_problem

    if tune:
        from kernelwright.tune import compile_tuned

        return compile_tuned(problem, progress)
    return compile_problem(problem, progress)


def verify_files(
    model: str | Path,
    candidate: str | Path,
    device: str,
    precision: str,
    quick: bool = False,
    progress: Progress | None = None,
) -> Certificate:
    from kernelwright.verify import verify

    begun: list[str] = []

    def begin(check: str) -> None:
        """verify names a check when it begins; progress is told when it has ended."""
        if progress and begun:
            progress("verify", begun[-1])
        begun.append(check)

    certificate = verify(model, candidate, device, precision, quick=quick, progress=begin)
    begin("")
    return certificate
