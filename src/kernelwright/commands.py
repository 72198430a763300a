"""What each command does, without its printing: paths in, results out.

`optimize_file` is the whole pipeline on one file. Nothing appears under the output's name before it
is certified: the source is verified in a temporary file beside it and then renamed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelwright.bench.runner import bench
from kernelwright.cache import keep_for_report
from kernelwright.errors import InputError, UnsupportedError, where_from
from kernelwright.failures import RUN_FIRST, charged_to_us
from kernelwright.files import check_writable, output_path, put, staged
from kernelwright.import_check import check_imports
from kernelwright.loading import read_source
from kernelwright.problem import Problem, in_mode, load_problem, resolve_device
from kernelwright.report.outcome import Outcome
from kernelwright.toolchain import check_toolchain

if TYPE_CHECKING:
    from kernelwright.compiled import Compiled
    from kernelwright.verify.certificate import Certificate

Progress = Callable[[str, str], None]
HELD_TO = "drop-in"  # what is emitted has to be all that the original is
STEP_SECONDS = 1.0  # for each variant of a training step, of which one line is told


def optimize_file(
    model: str | Path,
    output: str | Path | None = None,
    *,
    device: str = "auto",
    precision: str = "current",
    training: bool | None = None,
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
    read_source(model)
    target = output_path(model, output)
    check_writable(target)
    if target.exists() and model.exists() and target.samefile(model):
        raise InputError(f"The output {target} is the model file itself; choose another with -o.")
    compiled = compile_file(model, device, precision, progress, tune, training)
    if (verify or time_it) and "load_inline(" in compiled.source:
        check_toolchain(resolve_device(device).type)
    if on_compiled:
        on_compiled(compiled)
    certificate = None
    with staged(target, compiled.source) as stage:
        check_imports(stage, model)
        if verify:
            with charged_to_us(stage, target.stem):
                certificate = verify_files(
                    model, stage, device, precision, quick, progress, training, level=HELD_TO
                )
            certificate = replace(certificate, candidate=str(target))
            if on_certified:
                on_certified(certificate)
            if not certificate.passed:
                kept = keep_for_report(target.stem, compiled.source)
                return Outcome(compiled, None, certificate, None, kept)
        put(stage, target)
    timings = None
    if time_it:
        with charged_to_us(target, target.stem):
            timings = bench(
                model,
                target,
                device,
                precision,
                batch=batch,
                progress=progress,
                training=training,
                step_seconds=STEP_SECONDS,
            )
    return Outcome(compiled, target, certificate, timings)


def compile_file(
    model: str | Path,
    device: str,
    precision: str,
    progress: Progress | None = None,
    tune: bool = False,
    training: bool | None = None,
) -> Compiled:
    """Compile the Model of a file, in train or eval mode (None: as constructed).

    In train mode if that is asked for, its backward is generated besides.
    """
    problem = in_mode(load_problem(model, device, precision), training)
    from kernelwright.pipeline import compile_problem
    from kernelwright.plan.policy import WHERE_IT_PAYS

    policy = replace(WHERE_IT_PAYS, backward=training is True)
    try:
        if tune:
            from kernelwright.tune import compile_tuned

            return compile_tuned(problem, progress, policy)
        return compile_problem(problem, progress, policy=policy)
    except UnsupportedError:
        check_forward(problem)
        raise


def check_forward(problem: Problem) -> None:
    """What cannot be traced may not run either; then that is the error to tell."""
    import torch

    try:
        with torch.no_grad():
            copy.deepcopy(problem.module)(*problem.inputs, **problem.kwargs)
    except Exception as error:
        raise InputError(
            f"The model's own forward raised {type(error).__name__} at {where_from(error)}: "
            f"{error}. {RUN_FIRST}"
        ) from error


def verify_files(
    model: str | Path,
    candidate: str | Path,
    device: str,
    precision: str,
    quick: bool = False,
    progress: Progress | None = None,
    training: bool | None = None,
    **options: Any,
) -> Certificate:
    """verify with its progress told; `options` are only, thorough, seed, sanitize and level."""
    from kernelwright.verify.session import verify

    begun: list[str] = []

    def begin(check: str) -> None:
        """verify names a check when it begins; progress is told when it has ended."""
        if progress and begun:
            progress("verify", begun[-1])
        begun.append(check)

    certificate = verify(
        model,
        candidate,
        device,
        precision,
        quick=quick,
        progress=begin,
        training=training,
        **options,
    )
    begin("")
    return certificate
