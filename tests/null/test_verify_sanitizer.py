"""--sanitize: the candidate behind a tool, which is played by a script here."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from museum.models import LINEAR, forward
from museum.wrong import RIGHT
from verifying import reference, write

from kernelwright.verify import sanitizer
from kernelwright.verify.certificate import Check
from kernelwright.verify.session import job_for

TOOL = """
import subprocess, sys
from pathlib import Path

at = sys.argv.index("--log-file")
Path(sys.argv[at + 1]).write_text("========= COMPUTE-SANITIZER\\n")
code = subprocess.run(sys.argv[at + 2 :], close_fds=False).returncode
Path(sys.argv[at + 1]).write_text(Path(sys.argv[1]).read_text() if code == 0 else "")
"""
CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
DIRTY = """========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at kernel+0x70
=========     by thread (3,0,0) in block (0,0,0)
=========     Access at 0x7f is out of bounds
========= ERROR SUMMARY: 2 errors
"""


def _watched(folder: Path, candidate: str, log: str) -> Check:
    paths = write(folder, LINEAR, candidate)
    known = reference(paths[0])
    (folder / "tool.py").write_text(TOOL)
    (folder / "log.txt").write_text(log)
    job = job_for(known.job.model, paths[1], "cpu", "highest", seed=20)
    command = (sys.executable, str(folder / "tool.py"), str(folder / "log.txt"))
    return sanitizer.watched(job, known, command)


def test_a_clean_log_passes(tmp_path: Path) -> None:
    check = _watched(tmp_path, forward(RIGHT), CLEAN)
    assert check.passed, check
    assert "raised" not in check.detail


def test_the_first_error_is_told(tmp_path: Path) -> None:
    check = _watched(tmp_path, forward(RIGHT), DIRTY)
    assert check.passed is False
    assert "2 errors, first: Invalid __global__ read of size 4 bytes, at kernel" in check.detail


def test_a_candidate_that_ends_is_no_evidence(tmp_path: Path) -> None:
    check = _watched(tmp_path, forward("import os\nos._exit(3)"), CLEAN)
    assert check.passed is None and "did not come to its end" in check.detail


def test_without_a_gpu_or_a_tool_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = write(tmp_path, LINEAR, forward(RIGHT))
    known = reference(paths[0])
    assert "on a CPU" in sanitizer.sanitized(known.job, known).detail
    monkeypatch.setattr(sanitizer, "find_tool", lambda: None)
    on_a_gpu = replace(known.job, device="cuda")
    assert "install the CUDA toolkit" in sanitizer.sanitized(on_a_gpu, known).detail
