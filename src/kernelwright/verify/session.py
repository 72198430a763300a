"""The parent of verify: children do the work, and their death or silence is a failed check.

In: two paths. Out: a Certificate. The one idea: the child names each check before it starts it, so
whatever happens to the process is charged to that check, and a new child goes on with the rest.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch

from kernelwright.errors import BuildError, InputError, KernelwrightError
from kernelwright.problem import resolve_device, resolve_precision
from kernelwright.verify.certificate import Certificate, Check
from kernelwright.verify.checks import MAIN, TABLE
from kernelwright.verify.checks.fallbacks import count_fallbacks, judge_fallbacks

RESTARTS = 4
LOG_LINES = 15
FIRST = TABLE[0].name
KINDS: dict[str, type[KernelwrightError]] = {"InputError": InputError, "BuildError": BuildError}


@dataclass
class Session:
    """A verification under way: what is left to do, what was found, and until when."""

    job: dict[str, Any]
    time_limit: float
    progress: Callable[[str], None] | None
    remaining: list[str]
    checks: list[Check] = field(default_factory=list)
    weak: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.deadline = time.monotonic() + self.time_limit

    def record(self, check: Check) -> None:
        self.checks.append(check)
        self.remaining.remove(check.name)

    def patience(self, check: str | None) -> float:
        """How long a child may stay silent: no check may take all of the time from the others."""
        left = max(0.0, self.deadline - time.monotonic())
        share = {None: 1.0, FIRST: 0.5}.get(check, 0.25)
        return min(left, self.time_limit * share)


def verify(
    model_path: str | Path,
    candidate_path: str | Path,
    device: str = "auto",
    precision: str = "current",
    *,
    time_limit: float = 600.0,
    progress: Callable[[str], None] | None = None,
    quick: bool = False,
    training: bool | None = None,
) -> Certificate:
    """Certify that ModelNew in one file computes the same function as Model in another.

    `training` is the mode to start from, by default the one in which Model is constructed.
    """
    for path in (model_path, candidate_path):
        if not Path(path).is_file():
            raise InputError(f"There is no file {path}; give the path of a Python file.")
    job: dict[str, Any] = {
        "model": str(model_path),
        "candidate": str(candidate_path),
        "device": str(resolve_device(device)),
        "precision": resolve_precision(precision),
        "conv_tf32": bool(torch.backends.cudnn.allow_tf32),
        "training": training,
    }
    names = [row.name for row in TABLE if row.quick or not quick]
    session = Session(job, time_limit, progress, names)
    for _ in range(1 + RESTARTS):
        if session.remaining and time.monotonic() < session.deadline:
            _run_child(session)
    for name in list(session.remaining):
        session.record(Check(name, None, "not run: the candidate ended or outlasted its process"))
    checks = (*session.checks, judge_fallbacks(session.checks, MAIN))
    return Certificate(
        job["model"],
        job["candidate"],
        job["device"],
        job["precision"],
        checks,
        tuple(session.weak),
        count_fallbacks(checks),
    )


def _run_child(session: Session) -> None:
    """One child until it has done all checks, or died, or been silent for too long."""
    current: str | None = None
    before = len(session.checks)
    with tempfile.TemporaryDirectory(prefix="kernelwright-verify-") as folder:
        log = Path(folder, "stderr")
        job = Path(folder, "job.json")
        job.write_text(json.dumps({**session.job, "checks": session.remaining}))
        with log.open("w") as errors, _child(job, errors) as (process, lines):
            while True:
                patience = session.patience(current)
                try:
                    line = lines.get(timeout=patience)
                except queue.Empty:
                    share = f"{patience:.0f} s of the time limit of {session.time_limit:g} s"
                    _charge(session, current, f"the process was silent for {share}", log)
                    return
                if line is None:
                    break
                current = _hear(session, json.loads(line))
            status = process.wait()
        if current is not None or len(session.checks) == before:
            _charge(session, current, f"the process {_fate(status)}", log)


def _hear(session: Session, event: dict[str, Any]) -> str | None:
    """Take one line of the child in; the name of the check that runs now, if one does."""
    if "fatal" in event:
        raise KINDS[event["fatal"]["kind"]](event["fatal"]["message"])
    if "start" in event:
        name: str = event["start"]
        if session.progress is not None:
            session.progress(name)
        return name
    session.weak += event["weak"]
    session.record(Check(**event["done"]))
    return None


def _charge(session: Session, current: str | None, fate: str, log: Path) -> None:
    """Write the end of a child down as the failure of the check it was running."""
    doing = f"running the check {current}" if current else "loading the files"
    detail = f"{fate} while {doing}"
    name = current or session.remaining[0]
    session.record(Check(name, False, detail, log=_last_words(log)))


def _fate(status: int) -> str:
    if status >= 0:
        return f"ended with exit code {status}"
    return f"died with signal {-status} ({signal.Signals(-status).name})"


def _last_words(log: Path) -> str:
    """The stack of a crash, which Python prints most recent call first, else the last lines."""
    lines = [
        line
        for line in log.read_text(errors="replace").splitlines()
        if line.strip() and not line.startswith("Extension modules:")
    ]
    crash = next((i for i, line in enumerate(lines) if line.startswith("Fatal Python")), None)
    kept = lines[-LOG_LINES:] if crash is None else lines[crash:][:LOG_LINES]
    return "\n".join(kept)


@contextmanager
def _child(
    job: Path, errors: IO[str]
) -> Iterator[tuple[subprocess.Popen[str], queue.Queue[str | None]]]:
    """A running child and the queue of its lines, which ends with None; killed on the way out."""
    package_root = str(Path(__file__).resolve().parents[2])
    search_path = os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        [sys.executable, "-m", "kernelwright.verify.child", str(job)],
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        env={**os.environ, "PYTHONPATH": search_path},
        start_new_session=True,
    )
    lines: queue.Queue[str | None] = queue.Queue()
    reader = threading.Thread(target=_read, args=(process.stdout, lines), daemon=True)
    reader.start()
    try:
        yield process, lines
    finally:
        # The whole group, so that a compiler which the candidate started ends with it.
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        reader.join(timeout=1.0)


def _read(stream: IO[str], lines: queue.Queue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)
