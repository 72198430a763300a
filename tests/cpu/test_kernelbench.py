"""KernelBench's evaluator, modelled from its published description, on the founding models.

Models are small here; benchmarks/founding.py times the large ones.
"""

from __future__ import annotations

import copy
import warnings
from pathlib import Path

import checking
import pytest
import torch
from zoo.checks import launches

import kernelwright
from kernelwright.formats import evaluator
from kernelwright.pipeline import Compiled

CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=checking.EXAMPLES, ids=checking.name_of)
def texts(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, extensions: Path
) -> tuple[str, str]:
    """The text of a founding model with small sizes, and of the file emitted for it."""
    path = checking.reduced_example(request.param, tmp_path_factory.mktemp("reduced"))
    compiled: Compiled = kernelwright.explain(path, device="cpu")
    assert compiled.kernels
    return path.read_text(), compiled.source


def test_it_passes_the_evaluator_in_its_kernels(texts: tuple[str, str]) -> None:
    """Correct, and no timed call fell back, although gradients are enabled there."""
    found = evaluator.evaluate(*texts, CPU, trials=10)
    assert found.correct, found.why
    assert set(found.ms) == {"eager", "ours"}
    assert not found.fallbacks, dict(found.fallbacks)


@pytest.mark.parametrize("grad", [True, False])
def test_every_call_launches_the_kernels(texts: tuple[str, str], grad: bool) -> None:
    c = evaluator.contest(*texts, CPU)
    with torch.set_grad_enabled(grad), launches(c.candidate) as names:
        for seed in range(3):
            before = len(names)
            c.candidate(*c.inputs(seed))
            assert len(names) > before


def test_correct_with_gradients_enabled_too(texts: tuple[str, str]) -> None:
    c = evaluator.contest(*texts, CPU)
    found = evaluator.compare(c, grad=True)
    assert found.correct, found.why
    for module in (c.model, c.candidate):
        assert module(*c.inputs(0)).requires_grad


def test_weights_are_equal_under_one_seed(texts: tuple[str, str]) -> None:
    c = evaluator.contest(*texts, CPU, seed=7)
    ours, theirs = c.candidate.state_dict(), c.model.state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_training_step_after_the_evaluation(texts: tuple[str, str]) -> None:
    c = evaluator.contest(*texts, CPU)
    gradients = []
    for module in (c.model, c.candidate):
        module(*c.inputs(3)).square().mean().backward()
        gradients.append([p.grad for p in module.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def test_nothing_is_said_in_a_plain_call(texts: tuple[str, str]) -> None:
    c = evaluator.contest(*texts, CPU)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        c.candidate(*c.inputs(0))


WRONG = """

class ModelNew(Model):
    def forward(self, *inputs):
        return spoil(super().forward(*inputs))


def spoil(y):
    return {expression}
"""


@pytest.mark.parametrize("expression", ["y * 0", "y + 1e-2", "y[None]", "y * 1.01"])
def test_the_evaluator_refuses_wrong_candidates(texts: tuple[str, str], expression: str) -> None:
    original, _ = texts
    found = evaluator.evaluate(original, original + WRONG.format(expression=expression), CPU, 1)
    assert not found.correct
    assert found.why
    assert not found.ms


def test_the_evaluator_sees_a_fallback(texts: tuple[str, str]) -> None:
    """A candidate that runs the original forward is correct, and is found out."""
    original, _ = texts
    slow = """
import collections


class ModelNew(Model):
    def __init__(self, *given):
        super().__init__(*given)
        self.fallbacks = collections.Counter()

    def forward(self, *inputs):
        self.fallbacks["always"] += 1
        return super().forward(*inputs)
"""
    found = evaluator.evaluate(original, original + slow, CPU, trials=4)
    assert found.correct
    assert found.fallbacks["always"] == 4 + evaluator.WARMUPS


def test_copies_of_the_candidate_evaluate_alike(texts: tuple[str, str]) -> None:
    c = evaluator.contest(*texts, CPU)
    twin = evaluator.Contest(c.model, copy.deepcopy(c.candidate), c.get_inputs, CPU)
    assert evaluator.compare(twin).correct
