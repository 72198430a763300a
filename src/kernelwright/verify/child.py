"""The child process of verify: load a Subject, run checks, report each as one line of JSON.

In: the path of a job file. Out: lines on what was standard output: `start`, `done`, or `fatal` for
errors that are the user's. What the user's files print goes to standard error instead.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import torch

from kernelwright.errors import BuildError, KernelwrightError
from kernelwright.verify.certificate import Check, Finding
from kernelwright.verify.checks import ROWS
from kernelwright.verify.judge import in_short
from kernelwright.verify.subject import Subject, load_subject


def main(job_path: str) -> int:
    report = _private_stdout()
    faulthandler.enable()
    job = json.loads(Path(job_path).read_text())
    try:
        return _work(job, report)
    except KernelwrightError as error:
        _say(report, fatal={"kind": type(error).__name__, "message": str(error)})
        return error.exit_code


def _work(job: dict[str, Any], report: TextIO) -> int:
    torch.set_float32_matmul_precision(job["precision"])
    torch.backends.cudnn.allow_tf32 = job["conv_tf32"]
    paths = Path(job["model"]), Path(job["candidate"])
    subject = load_subject(*paths, job["device"], job["precision"], job["training"])
    for name in job["checks"]:
        _say(report, start=name)
        check, weak = run_check(subject, name)
        _say(report, done=asdict(check), weak=weak)
        if _is_broken(subject):
            os._exit(1)
    return 0


def _is_broken(subject: Subject) -> bool:
    """After a failed launch a CUDA context is of no more use: a new process takes the rest."""
    try:
        subject.finish()
    except RuntimeError:
        return True
    return False


def run_check(subject: Subject, name: str) -> tuple[Check, tuple[str, ...]]:
    """One check by name, and the sentences on what makes the problem weak."""
    row = ROWS[name]
    before = subject.fallbacks
    start = time.perf_counter()
    try:
        subject.use(row.parameters)
        finding = row.find(subject)
    except BuildError:
        raise
    except Exception as error:
        finding = Finding(False, f"the check was ended by {in_short(error)}")
    check = Check(
        name,
        finding.passed,
        finding.detail,
        finding.error,
        finding.eager_error,
        finding.allowed,
        round(time.perf_counter() - start, 3),
        _grown(before, subject.fallbacks),
    )
    return check, finding.weak


def _grown(before: dict[str, int] | None, after: dict[str, int] | None) -> dict[str, int] | None:
    return None if after is None else dict(Counter(after) - Counter(before or {}))


def _private_stdout() -> TextIO:
    """Keep the parent's pipe to ourselves, and send all other prints to standard error."""
    report = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return report


def _say(report: TextIO, **event: Any) -> None:
    report.write(json.dumps(event) + "\n")
    report.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
