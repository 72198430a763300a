"""A Summary as pages: the same tables as Markdown and as one HTML file that needs nothing else.

Written with Jinja2, which torch brings along: the page is a template, and everything in it is
escaped. It is readable without JavaScript, in the dark and in the light.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelwright.sweep.summary import FAST, Comparison, Group, Summary
from kernelwright.sweep.task import STATUSES
from kernelwright.sweep.watch import span

TEMPLATE = "page.html.j2"


@dataclass(frozen=True)
class Sheet:
    """One table; the first columns, as many as `left`, hold words and the others figures."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1
    note: str = ""


def sheets(summary: Summary, comparison: Comparison | None = None) -> list[Sheet]:
    groups = [summary.whole]
    groups += [summary.of_problems] if summary.judged else []
    classes = [summary.classes[name] for name in sorted(summary.classes)]
    groups += classes if len(classes) > 1 else []
    made = [_statuses(summary), _fast(groups), _means(groups), _worst(summary)]
    return made + ([_compared(comparison), *_moved(comparison)] if comparison else [])


def _statuses(summary: Summary) -> Sheet:
    order = [status for status in STATUSES if summary.statuses[status]]
    rows = [
        (status, str(summary.statuses[status]), STATUSES[status], _examples(summary, status))
        for status in order
    ]
    return Sheet("How the tasks ended", ("status", "tasks", "meaning", "for example"), rows, 1)


def _examples(summary: Summary, status: str) -> str:
    return ", ".join(_name(row) for row in summary.reasons.get(status, []))


def _fast(groups: Sequence[Group]) -> Sheet:
    heads = ("tasks", "count", *(f"fast_{p:g}" for p in FAST))
    rows = [(g.name, str(g.tasks), *(f"{g.fast(p):.1%}" for p in FAST)) for g in groups]
    note = (
        "fast_p: the share of all tasks, failed ones too, that are certified and more than p times "
        "as fast as eager; fast_0 are those that are certified."
    )
    return Sheet("fast_p", heads, rows, note=note)


def _means(groups: Sequence[Group]) -> Sheet:
    others = sorted({name for group in groups for name in group.over})
    heads = ("tasks", "certified", "timed", "over eager", *(f"over {name}" for name in others))
    rows = []
    for g in groups:
        means = [g.mean, *(g.mean_over(name) for name in others)]
        rows.append((g.name, str(g.passed), str(g.timed), *map(_factor, means)))
    note = "Geometric means over the tasks that are certified and timed."
    return Sheet("How many times faster", heads, rows, note=note)


def _worst(summary: Summary) -> Sheet:
    rows = [
        (
            _name(row),
            row["status"],
            _factor(row.get("speedup")),
            row["reason"] or "slower than most",
        )
        for row in summary.worst
    ]
    heads = ("task", "status", "over eager", "reason")
    return Sheet("The worst ten", heads, rows, note="What failed comes first, then the slowest.")


def _compared(found: Comparison) -> Sheet:
    rows = [
        ("in both", str(found.shared)),
        ("here alone", str(found.only_here)),
        ("there alone", str(found.only_there)),
        ("changed their status", str(len(found.changed))),
        ("timed in both", str(found.timed)),
        ("their time over ours, geometric mean", _factor(found.ratio)),
    ]
    return Sheet(f"Compared with {found.other}", ("tasks", ""), rows)


def _moved(found: Comparison) -> list[Sheet]:
    changed = [(_name(c), c["from"], c["to"]) for c in found.changed[:50]]
    moved = [(_name(m), _factor(m["ratio"])) for m in found.moved]
    made = [Sheet("Other status than there", ("task", "there", "here"), changed, 3)]
    made += [Sheet("The largest changes of time", ("task", "their time over ours"), moved)]
    return [sheet for sheet in made if sheet.rows]


def _name(row: dict[str, Any]) -> str:
    return f"{row['problem']} {row['candidate']}".strip()


def _factor(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def markdown(title: str, facts: Sequence[str], made: Sequence[Sheet]) -> str:
    parts = [f"# {title}", "\n".join(f"- {fact}" for fact in facts)]
    for sheet in made:
        marks = ["---" if i < sheet.left else "---:" for i in range(len(sheet.heads))]
        lines = [_line(sheet.heads), _line(marks), *map(_line, sheet.rows)]
        parts += [f"## {sheet.title}", *([sheet.note] if sheet.note else []), "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(text: str) -> str:
    """Reasons quote whatever somebody's code has said."""
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def html(title: str, facts: Sequence[str], made: Sequence[Sheet]) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    return environment.get_template(TEMPLATE).render(title=title, facts=facts, sheets=made)


def facts_of(about: dict[str, Any], summary: Summary) -> list[str]:
    """The conditions, without which figures mean nothing."""
    options = about["options"]
    told = [f"kernelwright {about['version']}, {about['machine']}"]
    told += [f"problems: {about['problems']}"]
    told += [f"candidates: {about['candidates']}"] if about.get("candidates") else []
    told += [f"device {options['device']}, float32 matmul {options['precision']}"]
    how = "quick checks" if options["quick"] else "all checks"
    told += [f"certified with {how}" if options["verify"] else "not certified"]
    timed = f"timed against {', '.join(options['baselines'])}, {options['seconds']:g} s a variant"
    told += [timed if options["bench"] else "not timed"]
    return [*told, f"{summary.whole.tasks} tasks, {span(summary.seconds)} of all workers"]
