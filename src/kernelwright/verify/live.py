"""verify for live modules: a module, its candidate and example inputs in, a Certificate out."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from kernelwright.live import emitted_file
from kernelwright.problem import Problem
from kernelwright.verify.certificate import DROP_IN, Certificate
from kernelwright.verify.saved import save
from kernelwright.verify.session import verify


def verify_compiled(
    problem: Problem, new: nn.Module, progress: Callable[[str, str], None] | None = None
) -> Certificate:
    """Certify what was just made of a problem; a file's is compared as a file."""

    def begin(check: str) -> None:
        if progress is not None:
            progress("verify", check)

    if problem.path is None:
        return verify_live(problem, new, progress=begin, level=DROP_IN)
    files = problem.path, emitted_file(new)
    device = str(problem.device)
    return verify(*files, device, problem.precision, progress=begin, level=DROP_IN)


def verify_live(problem: Problem, candidate: nn.Module | Path, **options: Any) -> Certificate:
    """The same checks as for files, in children that load what is saved here meanwhile."""
    with tempfile.TemporaryDirectory(prefix="kernelwright-live-") as folder:
        files = save(Path(folder), problem, candidate)
        certificate = verify(*files, str(problem.device), problem.precision, **options)
    name = str(candidate) if isinstance(candidate, Path) else type(candidate).__name__
    return replace(certificate, model=problem.name, candidate=name)
