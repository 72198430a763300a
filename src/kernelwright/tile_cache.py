"""Tiles that were measured once, kept from run to run in a notebook beside the built libraries.

What is in it is checked entry by entry: a damaged one is as if it were not there. Numbers are kept,
not sentences, since what is said of a tile ends up in emitted source text.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path

from kernelwright import cache
from kernelwright.notebook import Notebook

Shape = tuple[int, int, int, int]


@dataclass(frozen=True)
class Measured:
    """The shape that was chosen, the best of the others, and how much faster it was (0.03: 3%).

    The gain is below zero where the other one was faster, but not by enough.
    """

    chosen: Shape
    other: Shape
    gain: float


def cache_file() -> Path:
    """Beside the built libraries (see cache.py)."""
    return cache.tiles_file()


NOTEBOOK = Notebook(cache_file, "tiles", format=2)


def recall(key: str) -> Measured | None:
    return _measured(NOTEBOOK.recall(key))


def keep(key: str, measured: Measured) -> None:
    NOTEBOOK.keep(key, asdict(measured))


def _measured(entry: object) -> Measured | None:
    if not isinstance(entry, dict):
        return None
    chosen, other, gain = _shape(entry.get("chosen")), _shape(entry.get("other")), entry.get("gain")
    if chosen is None or other is None or not isinstance(gain, float) or not math.isfinite(gain):
        return None
    return Measured(chosen, other, gain)


def _shape(value: object) -> Shape | None:
    if not isinstance(value, list) or len(value) != 4 or any(type(x) is not int for x in value):
        return None
    columns, cluster, band, at_once = value
    return columns, cluster, band, at_once
