"""Random models of hypothesis through all passes, for every target, against float64.

One case is a model that is captured, rewritten, expanded and planned for the CPU and for Hopper;
each level is run by torch at several batch sizes. tests/fuzz.py runs as many more as wanted.
"""

from __future__ import annotations

import logging

import hypothesis
import pytest
import torch
from fuzzing.choices import Drawn, Seeded
from fuzzing.compiled import check_refused
from fuzzing.grammar import GRAMMAR
from fuzzing.judge import Noise, Truth, Wrong, check, module_of
from fuzzing.planned import check_planned, problem_of
from fuzzing.recipe import Recipe
from fuzzing.writer import Writer
from hypothesis import strategies
from torch import nn
from torch._export.utils import _collect_all_valid_cia_ops

from kernelwright import composites, tracing
from kernelwright.capture import capture

GROUPS, CASES = 8, 25


@pytest.fixture(autouse=True)
def quiet() -> None:
    """torch.export prints the graph of what it cannot trace."""
    logging.getLogger("torch").setLevel(logging.ERROR)


@pytest.mark.parametrize("group", range(GROUPS))
def test_plans_of_random_models_compute_the_models(group: int) -> None:
    """A failure is shrunk, and printed as a model file."""

    @hypothesis.seed(group)
    @hypothesis.settings(
        max_examples=CASES,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
    )
    @hypothesis.given(strategies.data())
    def check(data: object) -> None:
        recipe = Writer(Drawn(data), GRAMMAR).write()
        hypothesis.note(recipe.text)
        check_planned(recipe)

    check()


@pytest.mark.parametrize("seed", range(40))
def test_a_recipe_is_its_file(seed: int) -> None:
    recipe = Writer(Seeded(seed), GRAMMAR).write()
    assert Recipe.read(recipe.text) == recipe
    compile(recipe.text, "model.py", "exec")


@pytest.mark.parametrize("seed", range(6))
def test_tracing_gives_the_graph_that_plain_torch_gives(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operators are kept whole in a quicker way: first by registering them, then from memory."""
    problem = problem_of(Writer(Seeded(seed), GRAMMAR).write())
    with monkeypatch.context() as patch:
        patch.setattr(tracing, "functional", lambda program: program.run_decompositions({}))
        plain = capture(problem)
    assert capture(problem).nodes == plain.nodes
    monkeypatch.setattr(composites, "_stays", lambda node: False)
    kernels = {op: op.py_kernels.copy() for op in _collect_all_valid_cia_ops()}
    monkeypatch.setattr(composites, "_known", {})
    for _ in range(2):
        again = capture(problem)
        assert str(again) == str(plain) and again.contract == plain.contract
    assert {op: op.py_kernels for op in kernels} == kernels and len(composites._known) == 1


def test_a_truth_value_may_be_another_one_where_rounding_decides() -> None:
    """The divergence of a distribution from itself is nothing but rounding, of either sign."""
    text = "(F.kl_div(x0.log_softmax(-1), x0.softmax(-1)) >= 0.0, x0.sum() > 100.0)"
    recipe = Recipe((("x0", "torch.randn(batch, 4)"),), (), (), text)
    module = module_of(recipe)
    truth = Truth.of(recipe, module, recipe.make_inputs(5, 0), 2.0**-24)
    (near, far), state = truth.exact
    for value in (near, ~near):
        check("near", ((value, far), state), truth, eps=2.0**-23)
    with pytest.raises(Wrong):
        check("far", ((near, ~far), state), truth, eps=2.0**-23)


class Raising(nn.Module):
    def forward(self, error: Exception | None) -> None:
        if error is not None:
            raise error


def test_what_eager_raises_is_raised() -> None:
    """Of whatever type: torch may give None for no samples, which nothing can be done with."""
    for error in (TypeError(), RuntimeError()):
        check_refused(Raising(), (error,), error, 5)
        with pytest.raises(KeyError):
            check_refused(Raising(), (KeyError(),), error, 5)
        with pytest.raises(Wrong):
            check_refused(Raising(), (None,), error, 5)
        for other in (error, KeyError(), None):
            check_refused(Raising(), (other,), error, 0)


def test_noise_moves_every_number() -> None:
    x = torch.randn(100, dtype=torch.float64)
    moved = Noise(0, 1e-3).on({"a": x, "b": [torch.arange(3)]})
    assert torch.allclose((moved["a"] / x - 1).abs(), torch.full_like(x, 1e-3))
    assert torch.equal(moved["b"][0], torch.arange(3))
