"""Model and candidate files for the tests of verify, and its checks run in this process."""

from __future__ import annotations

from pathlib import Path

from kernelwright.verify.certificate import Check
from kernelwright.verify.checks import TABLE
from kernelwright.verify.child import run_check
from kernelwright.verify.subject import load_subject

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
"""


def write(folder: Path, model: str, candidate: str) -> tuple[Path, Path]:
    paths = folder / "model.py", folder / "candidate.py"
    for path, source in zip(paths, (model, candidate), strict=True):
        path.write_text(HEAD + source)
    return paths


def run_some(folder: Path, model: str, candidate: str, *names: str) -> dict[str, Check]:
    """The named checks, in the order given."""
    subject = load_subject(*write(folder, model, candidate), device="cpu", precision="highest")
    return {name: run_check(subject, name)[0] for name in names}


def run_all(folder: Path, model: str, candidate: str) -> dict[str, Check]:
    return run_some(folder, model, candidate, *(row.name for row in TABLE))
