"""The zoo on the CPU: modules through the public API, compared with eager and float64.

Each has a build of its own, so an ordinary run takes every second one and `--whole-zoo` takes all.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import zoo
from zoo import checks


@pytest.mark.parametrize("number", range(len(zoo.CASES)), ids=[case.name for case in zoo.CASES])
def test_zoo(number: int, request: pytest.FixtureRequest, extensions: Path) -> None:
    if number % 2 and not request.config.getoption("--whole-zoo"):
        pytest.skip("every second module is enough here; --whole-zoo runs all")
    checks.check(zoo.CASES[number], "cpu")
