"""Tiles measured for real: builds, times, keeps one, and the result is still that of the model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from kernelwright.bench.runner import check
from kernelwright.pipeline import compile_problem
from kernelwright.plan import ALWAYS
from kernelwright.problem import load_problem
from kernelwright.tile_cache import cache_file
from kernelwright.tune import tune
from kernelwright.verify.inputs import Inputs

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = pytest.mark.skipif(not HOPPER, reason="generated products need compute capability 9.0")

MODEL = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(512, 320)

    def forward(self, x):
        return torch.relu(self.linear(x))


def get_inputs():
    return [torch.randn(700, 512)]


def get_init_inputs():
    return []
"""


def test_a_linear_is_tuned_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five columns of tiles (64) or three (128): alone and in pairs, which then hang over."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    problem = load_problem(path, "cuda", "highest")
    told: list[str] = []
    tiles = tune(problem, lambda name, summary: told.append(summary), most=8, policy=ALWAYS)
    assert not [line for line in told if "has no time" in line], told
    ((name, tile),) = tiles.items()
    assert f"measured on {torch.cuda.get_device_name()}: " in tile.why
    assert len(json.loads(cache_file().read_text())["tiles"]) == 1

    compiled = compile_problem(problem, tiles=tiles, policy=ALWAYS)
    assert tile.why.split("; ")[-1][:40] in compiled.source.replace("\n// ", " ")
    model = compiled.instantiate()
    with torch.no_grad():
        found = check(problem, model, [Inputs(problem.inputs, {})])
    assert found and all(finding.passed for finding in found)
    assert not model.fallbacks

    again: list[str] = []
    assert tune(problem, lambda name, summary: again.append(summary), policy=ALWAYS) == tiles
    assert len(again) == 1 and f"{name}: {tile}, from {cache_file()}, without measuring" in again[0]
