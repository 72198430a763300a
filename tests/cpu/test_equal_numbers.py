"""Means of equal numbers are that number, in every layout of rows on the CPU."""

from __future__ import annotations

from pathlib import Path

import equal_numbers
import pytest


@pytest.mark.parametrize("name", equal_numbers.CASES)
def test_the_mean_of_equal_numbers_is_that_number(name: str, extensions: Path) -> None:
    own, _ = equal_numbers.errors(name, "cpu")  # eager is off by 1e-2 down a batch
    assert own <= equal_numbers.ROUNDING
