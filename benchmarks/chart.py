"""The sweep as a picture: speed over torch.compile by the number of rows, a panel per precision.

    python benchmarks/chart.py benchmarks/results/nvidia-h200-sweep.json

writes an SVG of the same name beside the file. Needs matplotlib, which nothing else here does.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib import rcParams
from matplotlib.figure import Figure

COLOURS = ("#2a6f97", "#c1121f", "#588157", "#b5838d", "#e09f3e")
# Filled: the product is ours. Hollow: the library's.
MARKS = {"generated": ("o", True), "few rows": ("^", True), "library": ("o", False)}
TICKS = (0.9, 1, 1.5, 2, 3, 4)


def panel(axis: Any, rows: list[dict[str, Any]], precision: str) -> None:
    mine = [r for r in rows if r["precision"] == precision]
    sizes = list(dict.fromkeys((r["columns"], r["depth"]) for r in mine))
    axis.axhline(1, color="#888888", linewidth=1)
    for colour, size in zip(COLOURS, sizes, strict=False):
        line = [r for r in mine if (r["columns"], r["depth"]) == size]
        x, y = [r["rows"] for r in line], [r["over_compile"] for r in line]
        axis.plot(x, y, color=colour, linewidth=1.2, label=f"{size[0]} x {size[1]}")
        for at, value, r in zip(x, y, line, strict=True):
            mark, ours = MARKS[r["path"]]
            fill = colour if ours else "white"
            axis.plot(at, value, mark, color=colour, markerfacecolor=fill, markersize=5)
    axis.set_title(f"{precision}", fontsize=10)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks([1, 16, 128, 1024, 16384], ["1", "16", "128", "1024", "16384"])
    axis.set_yticks(TICKS, [f"{t:g}x" for t in TICKS])
    axis.minorticks_off()
    axis.grid(color="#eeeeee")
    axis.set_xlabel("rows")


def main() -> None:
    source = Path(sys.argv[1])
    record = json.loads(source.read_text())
    (rows,) = record["parts"].values()
    precisions = list(dict.fromkeys(r["precision"] for r in rows))
    figure = Figure(figsize=(10, 3.6))
    axes = figure.subplots(1, len(precisions), sharey=True)
    for axis, precision in zip(axes, precisions, strict=True):
        panel(axis, rows, precision)
    axes[0].set_ylabel("torch.compile's time over ours")
    lines, names = axes[0].get_legend_handles_labels()
    for name, (mark, ours) in MARKS.items():
        fill = "#444444" if ours else "white"
        (handle,) = axes[0].plot([], [], mark, color="#444444", markerfacecolor=fill, markersize=5)
        lines.append(handle)
        names.append(name)
    figure.legend(lines, names, loc="lower center", ncols=len(names), frameon=False, fontsize=8)
    title = f"Linear, GroupNorm, LeakyReLU (columns x depth) on {record['device']}"
    figure.suptitle(title, fontsize=11)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    # No date and a fixed seed for names inside: the same figures give the same file.
    rcParams.update({"svg.hashsalt": "kernelwright", "svg.fonttype": "none"})
    figure.savefig(source.with_suffix(".svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()
