"""Every model of the zoo, from its file to a ModelNew that runs on the CPU and is right."""

from __future__ import annotations

from pathlib import Path

import checking
import pytest


@pytest.fixture(scope="module", params=checking.MODELS, ids=lambda p: p.stem)
def subject(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, extensions: Path
) -> checking.Subject:
    return checking.subject(request.param, tmp_path_factory.mktemp("emitted"), "cpu")


def test_plan_is_as_expected(subject: checking.Subject) -> None:
    checking.check_expectations(subject)


def test_own_shapes(subject: checking.Subject) -> None:
    subject.fallbacks.clear()
    checking.check_values(subject, subject.inputs(), "the file's own shapes")
    assert not subject.fallbacks


def test_other_batches(subject: checking.Subject) -> None:
    subject.fallbacks.clear()
    checking.check_batches(subject)
    checking.check_fallbacks(subject)


def test_memory_layouts(subject: checking.Subject) -> None:
    inputs = tuple(checking.scattered(x) for x in subject.inputs())
    checking.check_values(subject, inputs, "transposed memory with an offset")


def test_nan_and_infinities(subject: checking.Subject) -> None:
    checking.check_values(subject, checking.with_specials(subject.inputs()), checking.SPECIAL)


def test_state(subject: checking.Subject) -> None:
    checking.check_state(subject)


def test_gradients(subject: checking.Subject) -> None:
    checking.check_gradients(subject)
