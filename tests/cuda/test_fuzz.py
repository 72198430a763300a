"""Models that once failed, and some random ones, compiled and run on the GPU."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from fuzzing.choices import Seeded
from fuzzing.compiled import LOST, WRONG, judge_all
from fuzzing.grammar import GRAMMAR
from fuzzing.recipe import Recipe
from fuzzing.writer import WIDE, Writer

FUZZED = sorted((Path(__file__).parents[1] / "fuzzed").glob("*.py"))
DTYPES = ("float32", "float32", "float16", "bfloat16")
CASES, UNITS = 24, 8


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.export prints the graph of what it cannot trace; eager's own error is the measure."""
    logging.getLogger("torch").setLevel(logging.ERROR)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def judged(recipes: dict[str, Recipe], folder: Path) -> None:
    verdicts = judge_all(recipes, "cuda", folder, UNITS)
    assert not {n: v.why for n, v in verdicts.items() if v.kind in (WRONG, LOST)}


def test_models_that_failed_once_are_right(tmp_path: Path, extensions: Path) -> None:
    judged({path.stem: Recipe.read(path.read_text()) for path in FUZZED}, tmp_path)


def test_random_models_are_right(tmp_path: Path, extensions: Path) -> None:
    seeds = [Writer(Seeded(seed), GRAMMAR, WIDE, DTYPES) for seed in range(CASES)]
    judged({f"seed{i}": writer.write() for i, writer in enumerate(seeds)}, tmp_path)
