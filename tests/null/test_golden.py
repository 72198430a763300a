"""Golden plans and sources: what a change does to them is reviewed, not discovered.

`pytest --update-golden` rewrites tests/golden. Templates are left out: they are files of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import checking
import pytest

from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.problem import load_problem

TELLING = (
    "conv2d_min_tanh_tanh",
    "group_norm_log_softmax",
    "half_gelu_group_norm",
    "linear_multiply_batch_norm_train",
    "linear_sigmoid_linear_logsumexp",
    "sort_diamond",
    "window_attention",
)
PATHS = [*checking.EXAMPLES, *(p for p in checking.MODELS if p.stem in TELLING)]
TARGETS = ("cpu", "cuda")


@pytest.fixture(params=PATHS, ids=checking.name_of)
def name(request: pytest.FixtureRequest) -> str:
    return checking.name_of(request.param)


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def compiled(name: str, target: str, tmp_path: Path) -> Compiled:
    path = next(p for p in PATHS if checking.name_of(p) == name)
    if path in checking.EXAMPLES:
        path = checking.reduced_example(path, tmp_path)
    return compile_problem(load_problem(path, "cpu"), target=target)


def test_golden(
    compiled: Compiled, name: str, target: str, golden: Callable[[str, str], None]
) -> None:
    extension = "cu" if target == "cuda" else "cpp"
    golden(f"{name}/plan.{target}.txt", f"{compiled}\n")
    golden(f"{name}/programs.{extension}", checking.programs(compiled))
    golden(f"{name}/model_new.{target}.py", checking.model_functions(compiled))


def test_compiling_twice_gives_the_same_text(tmp_path: Path) -> None:
    path = checking.reduced_example(checking.EXAMPLES[0], tmp_path)
    first, second = (compile_problem(load_problem(path, "cpu")) for _ in range(2))
    assert first.source == second.source
