"""Means of equal numbers are that number, in every layout of rows on a GPU."""

from __future__ import annotations

from pathlib import Path

import equal_numbers
import pytest


@pytest.mark.parametrize("name", equal_numbers.CASES)
def test_the_mean_of_equal_numbers_is_that_number(name: str, extensions: Path) -> None:
    own, theirs = equal_numbers.errors(name, "cuda")
    assert own <= 2 * theirs + equal_numbers.ROUNDING
