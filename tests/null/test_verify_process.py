"""verify() as a user calls it: children that die or hang, errors that come back, certificates."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from kernelwright.errors import InputError
from kernelwright.verify import Certificate, verify
from kernelwright.verify.checks import TABLE
from kernelwright.verify.render import render

MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)

    def forward(self, x):
        return torch.relu(self.linear(x))

def get_inputs():
    return [torch.rand(12, 32)]

def get_init_inputs():
    return [32]
"""

RIGHT = """
class ModelNew(Model):
    def forward(self, x):
        print("a candidate may print")
        return self.linear(x).clamp_min(0)
"""

DEADLY = """
import ctypes
import time

class ModelNew(Model):
    def forward(self, x):
        if x.isnan().any():
            ctypes.string_at(0)
        if not x.is_contiguous():
            time.sleep(1000)
        return super().forward(x)
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    model, candidate = tmp_path / "model.py", tmp_path / "candidate.py"
    model.write_text(MODEL)
    candidate.write_text(MODEL + RIGHT)
    return model, candidate


def test_right_candidate_is_certified(files: tuple[Path, Path]) -> None:
    heard: list[str] = []
    certificate = verify(*files, device="cpu", precision="highest", progress=heard.append)
    assert certificate.passed, str(certificate)
    assert heard == [row.name for row in TABLE]
    assert [check.name for check in certificate.checks] == [*heard, "fallbacks"]
    _assert_readable(certificate)


def _assert_readable(certificate: Certificate) -> None:
    assert json.loads(json.dumps(certificate.to_json()))["passed"] is certificate.passed
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(render(certificate))
    shown = console.export_text()
    for check in certificate.checks:
        assert check.name in shown
        assert check.name in str(certificate)
    assert certificate.verdict in str(certificate)


def test_death_and_silence_are_failed_checks(files: tuple[Path, Path]) -> None:
    model, candidate = files
    candidate.write_text(MODEL + DEADLY)
    certificate = verify(model, candidate, device="cpu", quick=True, time_limit=60)
    found = {check.name: check for check in certificate.checks}
    assert found["inputs: NaN"].passed is False
    died = "signal 11 (SIGSEGV) while running the check inputs: NaN"
    assert died in found["inputs: NaN"].detail
    assert "candidate.py" in found["inputs: NaN"].log
    assert found["layout: transposed"].passed is False
    assert "time limit" in found["layout: transposed"].detail
    assert found["side effects"].passed is True
    assert {check.name for check in certificate.failures} == {
        *("inputs: NaN", "layout: transposed")
    }
    _assert_readable(certificate)


def test_users_error_comes_back_as_itself(files: tuple[Path, Path]) -> None:
    model, candidate = files
    candidate.write_text("class Other: ...")
    with pytest.raises(InputError, match="defines no `class ModelNew"):
        verify(model, candidate, device="cpu")


def test_missing_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="There is no file"):
        verify(tmp_path / "model.py", tmp_path / "candidate.py")
