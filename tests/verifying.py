"""Model and candidate files for the tests of verify, and its checks run one by one.

One fork server serves all tests of a process, and one reference process all candidates of a model:
what is left to pay for each is a fork.
"""

from __future__ import annotations

import atexit
import functools
import os
from collections.abc import Sequence
from pathlib import Path

from kernelwright import spawn
from kernelwright.verify.certificate import Certificate, Check
from kernelwright.verify.checks import ROWS
from kernelwright.verify.processes import Server
from kernelwright.verify.session import Session, certify, chosen, job_for, run_check
from kernelwright.verify.subject import Reference, Subject

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
"""
SEED = 20
SECONDS = 300.0

_references: dict[tuple[str, str], tuple[Path, Reference]] = {}


@functools.cache
def server() -> Server:
    """Its processes have one thread each: the models of the tests are small.

    One that a command of another test started ahead has as many as there are cores.
    """
    spawn.end_waiting()
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    made = Server()
    if before is None:
        del os.environ["OMP_NUM_THREADS"]
    else:
        os.environ["OMP_NUM_THREADS"] = before
    atexit.register(made.close)
    return made


def write(folder: Path, model: str, candidate: str) -> tuple[Path, Path]:
    paths = folder / "model.py", folder / "candidate.py"
    for path, source in zip(paths, (model, candidate), strict=True):
        path.write_text(HEAD + source)
    return paths


def reference(path: Path, device: str = "cpu", seed: int = SEED) -> Reference:
    """That of a model's text, wherever it lay when it was first asked for."""
    key = f"{path.read_text()}{seed}", device
    if key not in _references or not _references[key][1].side.running:
        job = job_for(path, path, device, "highest", seed=seed)
        _references[key] = path, Reference(job, server())
    return _references[key][1]


def subject(folder: Path, model: str, candidate: str, seed: int = SEED) -> Subject:
    """Both in their processes."""
    paths = write(folder, model, candidate)
    known = reference(paths[0], seed=seed)
    job = job_for(known.job.model, paths[1], "cpu", "highest", seed=seed)
    return Subject(job, server(), known)


def run_some(folder: Path, model: str, candidate: str, *names: str) -> dict[str, Check]:
    """The named checks, in the order given."""
    loaded = subject(folder, model, candidate)
    try:
        return {name: run_check(loaded, ROWS[name])[0] for name in names}
    finally:
        loaded.close()


def run_all(folder: Path, model: str, candidate: str) -> dict[str, Check]:
    return run_some(folder, model, candidate, *(row.name for row in chosen(())))


def certified(
    folder: Path,
    model: str,
    candidate: str,
    names: Sequence[str] = (),
    seed: int = SEED,
    seconds: float = SECONDS,
    device: str = "cpu",
) -> Certificate:
    """A whole certificate, of some checks or of all."""
    paths = write(folder, model, candidate)
    known = reference(paths[0], device, seed)
    job = job_for(known.job.model, paths[1], device, "highest", seed=seed)
    rows = chosen(names)
    return certify(Session(job, seconds, None), server(), rows, reference=known)
