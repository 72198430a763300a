"""The order of the variants in a round of bench."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise, permutations

import pytest

from kernelwright.bench.turns import turns


@pytest.mark.parametrize("count", range(1, 9))
def test_everyone_follows_everyone_else_equally_often(count: int) -> None:
    rounds = [turns(count, k) for k in range(count * (1 + count % 2))]
    assert all(sorted(order) == list(range(count)) for order in rounds)
    times = 1 + count % 2
    assert Counter(order[0] for order in rounds) == dict.fromkeys(range(count), times)
    met = Counter(pair for order in rounds for pair in pairwise(order))
    assert met == dict.fromkeys(permutations(range(count), 2), times)


def test_each_round_begins_with_another() -> None:
    assert [turns(6, k)[0] for k in range(7)] == [0, 1, 2, 3, 4, 5, 0]
