"""The corpus as a picture: a bar for each chain, how many times faster than torch.compile it is.

In: (label, speedup, what the floor would be) for each chain. Out: an SVG, written by hand, so that
it needs nothing and the same figures give the same file. The axis is logarithmic; the tick on a row
is the roofline floor, beyond which no bar can reach.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from pathlib import Path

Row = tuple[str, float, float | None]
LABELS, PLOT, FIGURES, PITCH, TOP = 400, 520, 60, 16, 54
OURS, SLOWER, FLOOR, GRID = "#2a6f97", "#c1121f", "#e09f3e", "#dddddd"
TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


def write_chart(path: Path, rows: Sequence[Row], device: str) -> None:
    """Nothing is written before there is a bar."""
    if rows:
        path.write_text(svg(sorted(rows, key=lambda row: -row[1]), device))


def svg(rows: Sequence[Row], device: str) -> str:
    low, high = limits(rows)

    def at(value: float) -> float:
        share = math.log(value / low) / math.log(high / low)
        return LABELS + PLOT * share

    bottom = TOP + PITCH * len(rows)
    width, height = LABELS + PLOT + FIGURES, bottom + 12
    title = f"torch.compile's time over ours on {device}; the tick is the roofline floor"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
        f' width="{width}" height="{height}" font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="12" y="20" font-size="14">{html.escape(title)}</text>',
    ]
    for tick in (t for t in TICKS if low <= t <= high):
        colour = "#888888" if tick == 1 else GRID
        x = f"{at(tick):.1f}"
        parts.append(f'<line x1="{x}" y1="{TOP}" x2="{x}" y2="{bottom}" stroke="{colour}"/>')
        parts.append(f'<text x="{x}" y="{TOP - 6}" text-anchor="middle">{tick:g}x</text>')
    for i, row in enumerate(rows):
        parts += bar(row, TOP + PITCH * i, at)
    return "\n".join([*parts, "</svg>", ""])


def limits(rows: Sequence[Row]) -> tuple[float, float]:
    """The ticks around all values; the floors of collapses may lie far to the right."""
    values = [value for row in rows for value in row[1:] if value is not None]
    low = max((t for t in TICKS if t <= min(*values, 0.5)), default=min(values))
    high = min((t for t in TICKS if t >= max(*values, 2)), default=max(values))
    return low, high


def bar(row: Row, y: int, at: Callable[[float], float]) -> list[str]:
    label, speedup, floor = row
    ends = sorted((at(1), at(speedup)))
    middle = y + PITCH - 5
    colour = OURS if speedup >= 1 else SLOWER
    drawn = [
        f'<text x="{LABELS - 8}" y="{middle}" text-anchor="end">{html.escape(label)}</text>',
        f'<rect x="{ends[0]:.1f}" y="{y + 3}" width="{ends[1] - ends[0]:.1f}"'
        f' height="{PITCH - 6}" fill="{colour}"/>',
        f'<text x="{ends[1] + 4:.1f}" y="{middle}">{speedup:.2f}x</text>',
    ]
    if floor is not None:
        x = f"{at(floor):.1f}"
        ends_at = f'y1="{y + 1}" x2="{x}" y2="{y + PITCH - 1}"'
        drawn.append(f'<line x1="{x}" {ends_at} stroke="{FLOOR}" stroke-width="3"/>')
    return drawn
