"""The zoo on the GPU; the checks are those of the CPU tier.

`PYTHONPATH=src python3 -m pytest tests/cuda/test_zoo.py`: builds and checks run in as many
processes as the machine has cores, before the first test reports.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import zoo
from zoo.worker import check_all


@pytest.fixture(scope="session")
def failures(request: pytest.FixtureRequest, extensions: Path) -> dict[str, str]:
    """What failed for every case that was asked for."""
    asked = [i.callspec.params.get("case") for i in request.session.items if hasattr(i, "callspec")]
    names = [case.name for case in zoo.CASES if case in asked]
    return check_all(names, "cuda", min(16, os.cpu_count() or 1))


@pytest.mark.parametrize("case", zoo.CASES, ids=lambda c: c.name)
def test_zoo(case: zoo.Case, failures: dict[str, str]) -> None:
    assert not failures[case.name], failures[case.name]
