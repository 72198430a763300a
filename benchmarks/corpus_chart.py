"""The corpus as a picture: a bar for each chain, how many times faster than torch.compile it is.

In: (label, speedup, what the floor would be) for each chain. Out: an SVG. The tick on a row is the
roofline floor, beyond which no bar can reach. Drawn by the report's means, so it needs matplotlib.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kernelwright.report.figures import PRINTED, bars

Row = tuple[str, float, float | None]
OURS, SLOWER, FLOOR = (PRINTED[role] for role in ("accent", "warn", "quiet"))


def write_chart(path: Path, rows: Sequence[Row], device: str) -> None:
    """Nothing is written before there is a bar."""
    if rows:
        title = f"torch.compile's time over ours on {device}"
        found = sorted(rows, key=lambda row: -row[1])
        path.write_text(bars(found, title, "the roofline floor"))
