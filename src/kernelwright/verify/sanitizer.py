"""compute-sanitizer over the candidate's process, where it is asked for.

In: a Job and the Reference of its model. Out: a Check. The candidate gets a process of its own that
is started behind the tool, with an allocator that gives every tensor a block of its own, so that
reads and writes beside a tensor are seen. Its results are not looked at here: all other checks do.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from kernelwright import spawn
from kernelwright.verify import cases
from kernelwright.verify.certificate import SANITIZER, Check
from kernelwright.verify.processes import Process
from kernelwright.verify.side import Broken, Raised
from kernelwright.verify.sides import ONCE, Act
from kernelwright.verify.subject import Job, Reference, Subject
from kernelwright.verify.surroundings import Surroundings

TOOL = "compute-sanitizer"
# Blocks of a whole number of pages lie one behind the other; padding keeps them apart.
PADDING = ("--padding", "512")
OPTIONS = ("--tool", "memcheck", *PADDING, "--report-api-errors", "no", "--target-processes", "all")
# Otherwise blocks lie beside each other in memory that torch has taken for all of them.
ENVIRONMENT = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
SECONDS = 300.0
ENDING_SECONDS = 60.0
ROWS = 8
GRADIENTS = Act("gradients", {"way": "plain", "whole": False, "seed": 1})
SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) error")
SHOWN = 3  # lines of an error


def find_tool() -> str | None:
    """In the path, or where the CUDA toolkit is."""
    home = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin" / TOOL
    return shutil.which(TOOL) or (str(home) if home.is_file() else None)


def sanitized(job: Job, reference: Reference) -> Check:
    """No access of a kernel outside of what it was given, in calls of every kind."""
    if not job.device.startswith("cuda"):
        return Check(SANITIZER, None, f"{TOOL} watches kernels of a GPU; there are none on a CPU")
    if (tool := find_tool()) is None:
        told = f"there is no {TOOL}: install the CUDA toolkit, or set CUDA_HOME to where it is"
        return Check(SANITIZER, None, told)
    return watched(job, reference, (tool, *OPTIONS))


def watched(job: Job, reference: Reference, command: Sequence[str]) -> Check:
    """The same with a given tool, which writes what it finds into `--log-file`."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        process = Watched((*command, "--log-file", str(log)))
        said = _called(job, reference, process)
        process.finish()
        text = log.read_text(errors="replace") if log.is_file() else ""
    seconds = round(time.perf_counter() - start, 3)
    return Check(SANITIZER, *_judged(text, said), seconds=seconds)


def _called(job: Job, reference: Reference, starter: Watched) -> list[str]:
    """What went wrong with the calls themselves."""
    said: list[str] = []
    subject: Subject | None = None
    try:
        subject = Subject(job, starter, reference, time.monotonic() + SECONDS)
        subject.use("random")
        for case, act in _calls(subject):
            try:
                subject.candidate(case.make(0), act)
            except Raised as error:
                said.append(f"on {case.name} the candidate raised {error}")
    except (Broken, Raised) as error:
        said.append(str(error))
    finally:
        if subject is not None and subject.side.process is not None:
            subject.side.process.channel.close()  # then it ends by itself, and the tool sums up
            subject.surroundings.close()
    return said


def _calls(subject: Subject) -> Iterator[tuple[cases.Case, Act]]:
    most = min(subject.small, ROWS)
    for size in dict.fromkeys((most, 1, 7) if subject.resized else (most,)):
        yield cases.own(subject, size), ONCE
    for name in ("transposed", "sliced"):
        if (case := cases.layout(subject, name)) is not None:
            yield case, ONCE
    yield cases.own(subject, most), GRADIENTS


def _judged(text: str, said: list[str]) -> tuple[bool | None, str]:
    lines = [line.lstrip("= ").rstrip() for line in text.splitlines() if line.startswith("=====")]
    summary = SUMMARY.search(text)
    if summary is None:
        why = f": {said[0]}" if said else ""
        return None, f"{TOOL} did not come to its end{why}"
    if int(summary[1]) == 0:
        told = f"; {said[0]}" if said else ""
        return True, f"{TOOL} found no access outside of what the kernels were given{told}"
    first = [line for line in lines if line and not line.startswith("COMPUTE-SANITIZER")][:SHOWN]
    return False, f"{TOOL} found {summary[1]} errors, first: {', '.join(first)}"


class Watched:
    """A Starter of one process, behind a tool."""

    def __init__(self, command: Sequence[str]) -> None:
        self.command = command
        self.process: subprocess.Popen[bytes] | None = None
        self.forked: Process | None = None

    def fork(self, protected: bool, surroundings: Surroundings | None = None) -> Process:
        ours, theirs = socket.socketpair()
        log_out, log_in = os.pipe()
        self.process = spawn.begun(self.command, theirs, log_in, "alone", **ENVIRONMENT)
        os.close(log_in)
        log = os.fdopen(log_out, "rb", buffering=0)
        self.forked = Process(self, self.process.pid, protected, ours, log)
        return self.forked

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def status(self, pid: int) -> int | None:
        """As os.waitpid gives it."""
        code = None if self.process is None else self.process.poll()
        return None if code is None else code << 8 if code >= 0 else -code

    def end(self, pid: int) -> int | None:
        if self.process is not None and self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        return self.status(pid)

    def finish(self) -> None:
        """Let it end by itself, if it does."""
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(ENDING_SECONDS)
        if self.forked is not None:
            self.forked.end()
