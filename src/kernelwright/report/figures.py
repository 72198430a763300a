"""Pictures as SVG inside of a page: matplotlib draws, and the page's colours take over.

In: plain numbers. Out: an `<svg>` element as text, with a title and a description for those who do
not see it. The one idea: a figure is drawn in colours that stand for roles, which are then replaced
by CSS variables; so one picture serves light and dark, and its marks can be links into the page.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

from kernelwright.errors import InputError

HUES = 8  # of kernels, then they begin again
ROLES = ("ink", "muted", "grid", "surface", "accent", "warn", "good", "quiet")
COLOURS = {role: f"#0101{i + 16:02x}" for i, role in enumerate(ROLES)}
COLOURS |= {f"k{i}": f"#0102{i + 16:02x}" for i in range(HUES)}
COLOURS |= {f"k{i}-soft": f"#0103{i + 16:02x}" for i in range(HUES)}
PRINTED = {
    **{"ink": "#222222", "muted": "#5d6673", "grid": "#dddddd", "surface": "#ffffff"},
    **{"accent": "#2a6f97", "warn": "#c1121f", "good": "#588157", "quiet": "#e09f3e"},
    **{
        f"k{i}": c
        for i, c in enumerate(
            ("#2a6f97", "#c1121f", "#588157", "#b5838d", "#e09f3e", "#6a4c93", "#457b9d", "#8a5a44")
        )
    },
}
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "kernelwright",
    "font.size": 12,
    "text.color": COLOURS["ink"],
    "axes.edgecolor": COLOURS["grid"],
    "axes.labelcolor": COLOURS["muted"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": COLOURS["grid"],
    "ytick.color": COLOURS["grid"],
    "xtick.labelcolor": COLOURS["muted"],
    "ytick.labelcolor": COLOURS["muted"],
    "grid.color": COLOURS["grid"],
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 11.5,
    "hatch.color": COLOURS["grid"],
}
NOTHING_DATED = {"Date": None, "Creator": None, "Format": None, "Type": None}
DOT = 72  # dots an inch: a unit of the figure is a pixel of the page


@dataclass(frozen=True)
class Mark:
    """A part of a picture that stands for something on the page: what it is, and where it leads."""

    label: str
    href: str = ""
    steps: tuple[str, ...] = ()


def hue(index: int | None) -> str:
    """The colour of a kernel by its number; the library's is muted."""
    return COLOURS["muted" if index is None else f"k{index % HUES}"]


@contextmanager
def drawing(width: float, height: float) -> Iterator[Any]:
    """A figure of so many pixels, in the page's style."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError(
            "The pictures are drawn by matplotlib, which is not installed here: "
            "pip install 'kernelwright[report]'."
        ) from error
    with rc_context(STYLE):
        yield Figure(figsize=(width / DOT, height / DOT), dpi=DOT)


def svg(
    figure: Any, name: str, title: str, told: str, marks: Sequence[Mark] = (), kind: str = ""
) -> str:
    """The figure as an element of the page; artists with the gid `mark-I` are its marks."""
    root = _tree(figure)
    _rename(root, name)
    _link(root, name, marks)
    root.attrib.update({"class": f"figure {kind}".strip(), "aria-labelledby": f"{name}-t {name}-d"})
    root.set("role", "group" if any(m.href for m in marks) else "img")
    for tag, text in (("desc", told), ("title", title)):
        element = ElementTree.Element(tag, {"id": f"{name}-{tag[0]}"})
        element.text = text
        root.insert(0, element)
    text = ElementTree.tostring(root, encoding="unicode")
    for role, colour in COLOURS.items():
        text = text.replace(colour, f"var(--{role})")
    return text


def printed(figure: Any) -> str:
    """The figure as a file of its own, in fixed colours: the same figures give the same text."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata=NOTHING_DATED, facecolor=COLOURS["surface"])
    text = buffer.getvalue()
    for role, colour in COLOURS.items():
        text = text.replace(colour, PRINTED.get(role, PRINTED["muted"]))
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def _tree(figure: Any) -> ElementTree.Element:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata=NOTHING_DATED, transparent=True)
    root = ElementTree.fromstring(buffer.getvalue())
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        plain = {name.rpartition("}")[2]: value for name, value in element.attrib.items()}
        element.attrib.clear()
        element.attrib.update(plain)
        if "style" in plain:
            element.set("style", _style(plain["style"]))
        if plain.get("transform", "").startswith("rotate(-0 "):
            del element.attrib["transform"]
    for metadata in root.findall("metadata"):
        root.remove(metadata)
    root.attrib = {
        "viewBox": root.attrib["viewBox"],
        "width": root.attrib["width"].rstrip("pt"),
        "height": root.attrib["height"].rstrip("pt"),
    }
    return root


def _style(style: str) -> str:
    """Without the names of fonts: the family is the page's."""
    return re.sub(r"font-family: [^;]*;? ?", "", style)


def _rename(root: ElementTree.Element, name: str) -> None:
    """Ids that something refers to are made this picture's own; others go, but for marks."""
    text = ElementTree.tostring(root, encoding="unicode")
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', text))
    for element in root.iter():
        found = element.get("id")
        if found in used:
            element.set("id", f"{name}-{found}")
        elif found is not None and not found.startswith("mark-"):
            del element.attrib["id"]
        for key, value in element.attrib.items():
            if key == "href" and value.startswith("#"):
                element.set(key, f"#{name}-{value[1:]}")
            elif "url(#" in value:
                element.set(key, value.replace("url(#", f"url(#{name}-"))


def _link(root: ElementTree.Element, name: str, marks: Sequence[Mark]) -> None:
    """All artists of a mark become one group, or one link where it leads somewhere."""
    parents = {child: parent for parent in root.iter() for child in parent}
    found: dict[str, list[ElementTree.Element]] = {}
    for element in root.iter():
        if (gid := element.get("id", "")).startswith("mark-"):
            found.setdefault(gid, []).append(element)
    for index, mark in enumerate(marks):
        elements = found.get(f"mark-{index}", [])
        if not elements:
            continue
        group = ElementTree.Element("a" if mark.href else "g", {"class": "mark"})
        if mark.href:
            group.attrib.update({"href": mark.href, "aria-label": mark.label})
        if mark.steps:
            group.set("data-steps", " ".join(mark.steps))
        if mark.label:
            ElementTree.SubElement(group, "title").text = mark.label
        first = parents[elements[0]]
        first.insert(list(first).index(elements[0]), group)
        for element in elements:
            parents[element].remove(element)
            del element.attrib["id"]
            group.append(element)


# ---- times ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Span:
    """A time with its spread, in ms, and the role of its colour."""

    name: str
    middle: float
    low: float
    high: float
    role: str


def spans(rows: Sequence[Span], name: str, title: str) -> str:
    """A line for each time from its tenth to its ninetieth percentile, the median as a dot."""
    height = 34 * len(rows) + 52
    with drawing(1060, height) as figure:
        axis = figure.add_axes((0.13, 40 / height, 0.76, 1 - 48 / height))
        for y, row in enumerate(rows):
            colour = COLOURS[row.role]
            axis.plot(
                (0, row.middle),
                (y, y),
                color=colour,
                linewidth=12,
                alpha=0.18,
                solid_capstyle="butt",
            )
            axis.plot((row.low, row.high), (y, y), color=colour, linewidth=3)
            for end in (row.low, row.high):
                axis.plot((end, end), (y - 0.16, y + 0.16), color=colour, linewidth=1.5)
            axis.plot(row.middle, y, "o", color=colour, markersize=7)
            right = max(row.high, row.middle)
            axis.annotate(
                f"{row.middle:.4g} ms",
                (right, y),
                (9, 0),
                textcoords="offset points",
                va="center",
                weight="bold" if row.role == "accent" else "normal",
            )
        axis.set_yticks(range(len(rows)), [row.name for row in rows])
        axis.tick_params(axis="y", length=0, labelcolor=COLOURS["ink"])
        axis.set_ylim(len(rows) - 0.5, -0.5)
        axis.set_xlim(0, max(max(r.high, r.middle) for r in rows) * 1.06)
        axis.set_xlabel("ms a call: median, and the tenth to the ninetieth percentile")
        axis.grid(axis="x")
        axis.set_axisbelow(True)
        told = "; ".join(f"{r.name} {r.middle:.4g} ms ({r.low:.4g} to {r.high:.4g})" for r in rows)
        return svg(figure, name, title, told)


# ---- memory ---------------------------------------------------------------------------------


def steps_of_memory(before: Sequence[int], after: Sequence[int], name: str, title: str) -> str:
    """Live bytes while a call goes on: of the original's operators, and of the steps."""
    scale, unit = _bytes(max([*before, *after, 1]))
    with drawing(1060, 270) as figure:
        axis = figure.add_axes((0.06, 0.1, 0.93, 0.88))
        for values, role, label in (
            (before, "muted", "the original, operator by operator"),
            (after, "accent", "kernelwright, step by step"),
        ):
            if not values:
                continue
            edges = [i / len(values) for i in range(len(values) + 1)]
            heights = [v / scale for v in values]
            peak = f"{label}: at most {max(heights):.3g} {unit}"
            axis.stairs(heights, edges, fill=True, color=COLOURS[role], alpha=0.16)
            axis.stairs(heights, edges, color=COLOURS[role], linewidth=2, label=peak)
        axis.set_xlim(0, 1)
        axis.set_ylim(0, max([*before, *after, 1]) / scale * 1.3)
        axis.set_xticks((0, 1), ("the call begins", "and ends"))
        axis.get_xticklabels()[0].set_ha("left")
        axis.get_xticklabels()[1].set_ha("right")
        axis.set_ylabel(unit)
        axis.grid(axis="y")
        axis.legend(loc="upper left", ncols=2, labelcolor=COLOURS["ink"])
        told = f"The original holds at most {max(before, default=0) / scale:.3g} {unit} at once, "
        told += f"the optimized model at most {max(after, default=0) / scale:.3g} {unit}."
        return svg(figure, name, title, told)


def _bytes(largest: float) -> tuple[float, str]:
    for scale, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if largest >= scale:
            return scale, unit
    return 1.0, "B"


# ---- roofline -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """A step on a roofline: its work, and its times in us as far as they are known."""

    name: str
    flops: float
    bytes: float
    predicted: float | None
    measured: float | None
    hue: int | None
    steps: tuple[str, ...]


def roofline(points: Sequence[Point], bandwidth: float, peak: float, name: str, title: str) -> str:
    """Operations a second over operations a byte; a hollow mark is predicted, a full one measured.

    `bandwidth` is in bytes a second, `peak` in operations a second.
    """
    shown = [p for p in points if p.flops > 0 and p.bytes > 0]
    at = [p.flops / p.bytes for p in shown] or [1.0]
    low, high = min(*at, 0.5) / 3, max(*at, peak / bandwidth) * 4
    ridge = peak / bandwidth
    with drawing(1060, 420) as figure:
        axis = figure.add_axes((0.07, 0.12, 0.92, 0.86))
        axis.plot(
            (low, ridge, high), (low * bandwidth, peak, peak), color=COLOURS["muted"], linewidth=1.8
        )
        axis.fill_between(
            (low, ridge, high),
            (low * bandwidth, peak, peak),
            peak * 20,
            color=COLOURS["grid"],
            alpha=0.35,
            linewidth=0,
        )
        marks = [_mark(p) for p in shown]
        rates = []
        for i, p in enumerate(shown):
            x, colour = p.flops / p.bytes, hue(p.hue)
            times = [t for t in (p.predicted, p.measured) if t]
            rates += [p.flops / t * 1e6 for t in times]
            if p.predicted and p.measured:
                ends = [p.flops / t * 1e6 for t in (p.predicted, p.measured)]
                axis.plot((x, x), ends, color=colour, linewidth=1.2, linestyle=":", gid=f"mark-{i}")
            if p.predicted:
                axis.plot(
                    x,
                    p.flops / p.predicted * 1e6,
                    "o",
                    markersize=9,
                    markeredgewidth=1.8,
                    markerfacecolor=COLOURS["surface"],
                    markeredgecolor=colour,
                    gid=f"mark-{i}",
                )
            if p.measured:
                axis.plot(
                    x, p.flops / p.measured * 1e6, "o", markersize=9, color=colour, gid=f"mark-{i}"
                )
        for i, y, text in _labels(shown):
            p = shown[i]
            axis.annotate(
                text,
                (p.flops / p.bytes, y),
                (9, 0),
                textcoords="offset points",
                va="center",
                fontsize=11.5,
                color=COLOURS["ink"],
                gid=f"mark-{i}",
            )
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xlim(low, high)
        axis.set_ylim(min([*rates, peak / 50]) / 2.5, peak * 3)
        middle = math.sqrt(ridge * high)
        axis.annotate(
            f"{_rate(peak)} at the most",
            (middle, peak),
            (0, 7),
            ha="center",
            textcoords="offset points",
            fontsize=11.5,
            color=COLOURS["muted"],
        )
        axis.annotate(
            f"memory: {bandwidth / 1e9:.4g} GB/s",
            (low, low * bandwidth),
            (16, -3),
            textcoords="offset points",
            fontsize=11.5,
            color=COLOURS["muted"],
        )
        axis.set_xlabel("operations a byte")
        axis.set_ylabel("operations a second")
        axis.minorticks_off()
        axis.grid()
        axis.set_axisbelow(True)
        told = "; ".join(m.label for m in marks)
        return svg(figure, name, title, told, marks)


def _mark(p: Point) -> Mark:
    words = [f"predicted {p.predicted:.3g} us" if p.predicted else "not predicted"]
    words.append(f"measured {p.measured:.3g} us" if p.measured else "not measured")
    href = f"#step-{p.steps[0]}" if p.steps else ""
    return Mark(f"{p.name}: {', '.join(words)}", href, p.steps)


def _labels(points: Sequence[Point]) -> Iterator[tuple[int, float, str]]:
    """Names beside the marks, as far as they do not lie on one another."""
    taken: list[tuple[float, float]] = []
    for i, p in enumerate(points):
        time = p.measured or p.predicted
        if not time:
            continue
        at = math.log10(p.flops / p.bytes), math.log10(p.flops / time)
        if all(abs(at[0] - x) > 0.7 or abs(at[1] - y) > 0.18 for x, y in taken):
            taken.append(at)
            yield i, p.flops / time * 1e6, p.name if len(p.name) < 34 else p.name[:32] + "…"


def _rate(peak: float) -> str:
    return f"{peak / 1e12:.3g} TFLOP/s" if peak >= 1e12 else f"{peak / 1e9:.3g} GFLOP/s"


# ---- bars -----------------------------------------------------------------------------------


def bars(rows: Sequence[tuple[str, float, float | None]], title: str, floor: str) -> str:
    """How many times faster each is, on a logarithmic axis, as the text of a file.

    A tick is where the floor would be.
    """
    pitch = 16
    height = pitch * len(rows) + 70
    with drawing(1000, height) as figure:
        axis = figure.add_axes((0.4, 12 / height, 0.53, 1 - 70 / height))
        for y, (_, value, least) in enumerate(rows):
            role = "accent" if value >= 1 else "warn"
            axis.barh(y, value - 1, left=1, height=0.62, color=COLOURS[role])
            axis.annotate(
                f"{value:.2f}x",
                (max(1.0, value), y),
                (5, 0),
                va="center",
                textcoords="offset points",
                fontsize=10,
            )
            if least is not None:
                axis.plot((least, least), (y - 0.45, y + 0.45), color=COLOURS["quiet"], linewidth=3)
        values = [v for _, *pair in rows for v in pair if v is not None]
        axis.set_xscale("log")
        axis.set_xlim(min(*values, 0.5) / 1.1, max(*values, 2) * 1.1)
        axis.set_ylim(len(rows) - 0.4, -0.6)
        axis.set_yticks(range(len(rows)), [label for label, *_ in rows], fontsize=10)
        axis.tick_params(axis="y", length=0, labelcolor=COLOURS["ink"])
        ticks = [t for t in _ticks() if axis.get_xlim()[0] <= t <= axis.get_xlim()[1]]
        axis.set_xticks(ticks, [f"{t:g}x" for t in ticks])
        axis.xaxis.tick_top()
        axis.minorticks_off()
        axis.axvline(1, color=COLOURS["muted"], linewidth=1)
        axis.grid(axis="x")
        axis.set_axisbelow(True)
        figure.text(0.012, 1 - 22 / height, f"{title}; the tick is {floor}", fontsize=13)
        return printed(figure)


def _ticks() -> list[float]:
    return [10.0**power * step for power in range(-1, 4) for step in (1, 2, 5)]


# ---- graphs ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Box:
    """A node of a drawn graph: two lines of text, what it reads, and its place in the colours."""

    name: str
    head: str
    below: str
    reads: tuple[str, ...]
    mark: Mark
    hue: int | None
    plain: bool = False  # an input, or what moves no data
    given: bool = False  # an input


LETTER, LINE, ROW, GAP = 6.3, 15.0, 58.0, 26.0  # pixels: of a character, a line, a layer, between


def graph(boxes: Sequence[Box], name: str, title: str, told: str) -> str:
    """Nodes in layers from above to below, each below all that it reads."""
    from matplotlib.patches import FancyBboxPatch, PathPatch

    from kernelwright.report.layers import laid_out

    widths = {b.name: LETTER * max(len(b.head) * 1.06, len(b.below)) + 22 for b in boxes}
    reads = {b.name: [r for r in b.reads if r in widths] for b in boxes}
    places, lines, width = laid_out(reads, widths, GAP, [b.name for b in boxes if b.given])
    height = ROW * (max(y for _, y in places.values()) + 1) + 10
    with drawing(width + 20, height) as figure:
        axis = figure.add_axes((0, 0, 1, 1))
        axis.set_xlim(-10, width + 10)
        axis.set_ylim(height, 0)
        axis.axis("off")
        axis.add_patch(
            PathPatch(_curves(lines), fill=False, edgecolor=COLOURS["muted"], linewidth=1.1)
        )
        for i, box in enumerate(boxes):
            x, layer = places[box.name]
            y, w = _middle(layer), widths[box.name]
            edge = COLOURS["grid"] if box.plain else hue(box.hue)
            soft = COLOURS["surface" if box.hue is None else f"k{box.hue % HUES}-soft"]
            shape = FancyBboxPatch(
                (x - w / 2, y - 18),
                w,
                36,
                boxstyle=f"round,pad=0,rounding_size={4 + 12 * box.plain}",
                facecolor=soft,
                edgecolor=edge,
                linewidth=1.5,
                gid=f"mark-{i}",
                linestyle=(0, (4, 3)) if box.hue is None and not box.plain else "-",
            )
            axis.add_patch(shape)
            axis.text(
                x,
                y - 7,
                box.head,
                ha="center",
                va="center",
                fontsize=10.5,
                weight="bold",
                gid=f"mark-{i}",
            )
            axis.text(
                x,
                y + 8,
                box.below,
                ha="center",
                va="center",
                fontsize=9.5,
                color=COLOURS["muted"],
                gid=f"mark-{i}",
            )
        return svg(figure, name, title, told, [b.mark for b in boxes], "graph")


def _middle(layer: float) -> float:
    return ROW * layer + 24


def _curves(lines: Sequence[Sequence[tuple[float, float]]]) -> Any:
    """Smooth lines through places of neighbouring layers, as one path."""
    from matplotlib.path import Path

    corners: list[tuple[float, float]] = []
    codes: list[int] = []
    for line in lines:
        points = [(x, _middle(layer)) for x, layer in line]
        corners.append(points[0])
        codes.append(int(Path.MOVETO))
        for (x0, y0), (x1, y1) in pairwise(points):
            half = (y0 + y1) / 2
            corners += [(x0, half), (x1, half), (x1, y1)]
            codes += [int(Path.CURVE4)] * 3
    return Path(corners or [(0.0, 0.0)], codes or [int(Path.MOVETO)])
