"""Random models, compiled: values, buffers, memory and a training step; and those that once failed.

Models share a build (fuzzing/together.py). tests/fuzz.py runs as many more as wanted, and keeps
what fails in tests/fuzzed.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest
from fuzzing import together
from fuzzing.choices import Seeded
from fuzzing.compiled import WRONG, compile_one, judge_all
from fuzzing.grammar import GRAMMAR
from fuzzing.planned import check_planned
from fuzzing.recipe import Recipe
from fuzzing.writer import SMALL, WIDE, Writer

from kernelwright.errors import UnsupportedError
from kernelwright.toolchain import nvcc

FUZZED = sorted((Path(__file__).parents[1] / "fuzzed").glob("*.py"))
DTYPES = ("float32", "float32", "float16", "bfloat16")
GROUPS, CASES = 8, 4


@pytest.fixture(autouse=True)
def quiet() -> None:
    """torch.export prints the graph of what it cannot trace."""
    logging.getLogger("torch").setLevel(logging.ERROR)


@pytest.mark.parametrize("group", range(GROUPS))
def test_random_models_are_right(group: int, tmp_path: Path, extensions: Path) -> None:
    seeds = range(group * CASES, (group + 1) * CASES)
    recipes = {
        f"seed{seed}": Writer(Seeded(seed), GRAMMAR, SMALL, DTYPES).write() for seed in seeds
    }
    verdicts = judge_all(recipes, "cpu", tmp_path)
    wrong = {n: (v.why, recipes[n].text) for n, v in verdicts.items() if v.kind == WRONG}
    assert not wrong, "\n".join(f"{n}: {why}\n{text}" for n, (why, text) in wrong.items())
    assert sum(v.kernels for v in verdicts.values()) > CASES


@pytest.mark.parametrize("group", range(GROUPS))
def test_models_that_failed_once_are_right(group: int, tmp_path: Path, extensions: Path) -> None:
    recipes = {path.stem: Recipe.read(path.read_text()) for path in FUZZED[group::GROUPS]}
    verdicts = judge_all(recipes, "cpu", tmp_path)
    assert not {n: v.why for n, v in verdicts.items() if v.kind == WRONG}


@pytest.mark.parametrize("path", FUZZED, ids=lambda path: path.stem)
def test_plans_that_failed_once_are_right(path: Path) -> None:
    recipe = Recipe.read(path.read_text())
    assert recipe.text == path.read_text(), "write it as Recipe.text does"
    if recipe.dtype == "float32":
        check_planned(recipe)


@pytest.mark.nvcc
@pytest.mark.skipif(nvcc() is None, reason="nvcc, the CUDA compiler, is not here")
@pytest.mark.parametrize("group", range(GROUPS // 2))
def test_random_models_compile_for_hopper(group: int, tmp_path: Path) -> None:
    assert shutil.which(str(nvcc()))
    sources = {}
    for seed in range(group * CASES, (group + 1) * CASES):
        recipe = Writer(Seeded(seed), GRAMMAR, WIDE, DTYPES).write()
        try:
            sources[f"seed{seed}"] = compile_one(recipe, "cuda", pays=seed % 4 != 3).source
        except UnsupportedError:
            continue
    assert len(sources) > CASES // 2
    assert together.build(sources, tmp_path, "cuda")
