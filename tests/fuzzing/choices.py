"""Where a random model's decisions come from: a seed, or hypothesis, which can shrink them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")


class Choices(Protocol):
    """All that the writer of a model asks."""

    def pick(self, items: Sequence[T]) -> T: ...

    def integer(self, low: int, high: int) -> int: ...

    def chance(self, percent: int) -> bool: ...


class Seeded:
    """The same decisions for the same seed, on any machine."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def pick(self, items: Sequence[T]) -> T:
        return items[self.random.randrange(len(items))]

    def integer(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def chance(self, percent: int) -> bool:
        return self.random.randrange(100) < percent


class Drawn:
    """Decisions of hypothesis: `data` is what `st.data()` gives a test.

    It shrinks towards the first item, the lowest number and no.
    """

    def __init__(self, data: object) -> None:
        from hypothesis import strategies

        self.draw = data.draw  # type: ignore[attr-defined]
        self.strategies = strategies

    def pick(self, items: Sequence[T]) -> T:
        return items[self.integer(0, len(items) - 1)]

    def integer(self, low: int, high: int) -> int:
        return low if low == high else self.draw(self.strategies.integers(low, high))

    def chance(self, percent: int) -> bool:
        return self.integer(0, 99) >= 100 - percent
