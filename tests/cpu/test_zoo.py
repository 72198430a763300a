"""The zoo on the CPU: modules through the public API, compared with eager and float64."""

from __future__ import annotations

from pathlib import Path

import pytest
import zoo
from zoo import checks


@pytest.mark.parametrize("case", zoo.CASES, ids=lambda case: case.name)
def test_zoo(case: zoo.Case, extensions: Path) -> None:
    checks.check(case, "cpu")
