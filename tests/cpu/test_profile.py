"""profile of a real model on the CPU: every step is found, from the model and from its file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernelwright.cli import main
from kernelwright.profile.events import CALL

MODEL = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(32, 64)
        self.norm = nn.LayerNorm(64)

    def forward(self, x):
        y = self.norm(torch.relu(self.fc(x)))
        return torch.cumsum(y, 0) + y


def get_inputs():
    return [torch.randn(16, 32)]


def get_init_inputs():
    return []
"""


def test_each_step_has_a_time(
    tmp_path: Path, extensions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out, trace = (tmp_path / n for n in ("model.py", "a.json", "trace.json"))
    model.write_text(MODEL)
    flags = ["--device", "cpu", "--calls", "5", "--quiet"]
    written = ["--json", str(out), "--trace", str(trace)]
    assert main(["profile", str(model), *flags, *written]) == 0
    found = json.loads(out.read_text())
    assert found["calls"] == 5 and found["notices"] == []
    timed = {row["step"] for row in found["spent"]}
    assert timed - {""} == {step["name"] for step in found["steps"] if step["launches"]}
    assert all(0 < row["low"] <= row["us"] <= row["high"] for row in found["spent"])
    assert sum(row["us"] for row in found["spent"]) <= 2 * found["call_us"]
    events = json.loads(trace.read_text())["traceEvents"]
    assert sum(e.get("name") == CALL and e.get("ph") == "X" for e in events) == 5
    assert {e["name"] for e in events if e.get("cat") == "predicted"} >= timed - {""}

    # The same model under two settings: one is run now, the other was recorded.
    flags = ["--device", "cpu", "--calls", "3", "--json", "-"]
    assert main(["profile", str(model), "--diff", str(out), "threads=1", *flags]) == 0
    told = json.loads(capsys.readouterr().out)
    names = {row["name"] for row in told["difference"]}
    assert timed - {""} <= names and told["b"]["calls"] == 3
