"""Tiles that were measured once, kept from run to run in one JSON file beside the built libraries.

What is in the file is checked entry by entry: one that is damaged, or of another format, is as if
it were not there. Numbers are kept, not sentences, since what is said of a tile ends up in emitted
source text.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kernelwright import cache
from kernelwright.files import locked, write_atomically

FORMAT = 2
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


def recall(key: str) -> Measured | None:
    return _measured(_entries(cache_file()).get(key))


def keep(key: str, measured: Measured) -> None:
    """Add an entry to the file; others may be doing the same."""
    file = cache_file()
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(file.with_suffix(".lock")):
        entries = _entries(file) | {key: asdict(measured)}
        content = {"format": FORMAT, "tiles": entries}
        write_atomically(file, json.dumps(content, indent=2, sort_keys=True) + "\n")


def _entries(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        return {}
    tiles = content.get("tiles")
    return tiles if isinstance(tiles, dict) else {}


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
