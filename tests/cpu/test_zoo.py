"""The zoo on the CPU: modules through the public API, compared with eager and float64.

Each has a build of its own, so an ordinary run takes every third one and `--whole` takes all.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import zoo
from zoo import checks


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", zoo.CASES, ids=lambda case: case.name)
def test_zoo(case: zoo.Case, extensions: Path) -> None:
    checks.check(case, "cpu")
