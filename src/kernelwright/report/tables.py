"""Compiled and Timings in, rich renderables out; every table fits 100 columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from kernelwright.bench.timings import BASELINES, CANDIDATE, Timing, Timings
from kernelwright.units import scaled

if TYPE_CHECKING:
    from kernelwright.check import Checked
    from kernelwright.compiled import Compiled
    from kernelwright.ledger import LedgerRow

FATES = {"fused": "green", "folded": "cyan", "aten": "yellow"}


def ledger_table(rows: Iterable[LedgerRow]) -> Table:
    """Each operator of the model: where it went, and why (once for neighbours that share it)."""
    table = plain_table("Ledger: where every operator went")
    table.add_column("operator", no_wrap=True)
    table.add_column("from", style="dim", no_wrap=True)
    table.add_column("fate", no_wrap=True)
    table.add_column("where", overflow="fold", max_width=36)
    table.add_column("why")
    above = ""
    for row in rows:
        fate = Text(row.fate, FATES.get(row.fate, "white"))
        why = "″" if row.why == above else row.why
        table.add_row(*_plain(row.op, row.origin), fate, *_plain(row.where, why))
        above = row.why
    return table


def checked_table(checked: Checked) -> Table:
    """Each part of the library in an emitted file, and whether it is the package's."""
    table = plain_table(f"The library in {checked.path}")
    for heading in ("part", "lines", "written by", "finding"):
        table.add_column(heading, no_wrap=heading != "finding")
    for f in checked.findings:
        style = "green" if f.status == "identical" else "red"
        told = Text(f"{f.status}: {f.part} {f.told}", style)
        table.add_row(f.part, str(f.lines), f"kernelwright {f.version}" if f.version else "", told)
    return table


def plan_table(compiled: Compiled) -> RenderableType:
    """The steps with their traffic, then the reasons: of each step, rewrite and refusal."""
    problem = compiled.problem
    table = plain_table(f"Plan of {problem.name}: bytes and flops at batch {problem.batch}")
    table.add_column("step", no_wrap=True)
    table.add_column("kind", no_wrap=True)
    table.add_column("operators")
    for heading in ("bytes", "flops", "launches"):
        table.add_column(heading, justify="right", no_wrap=True)
    notes = []
    for r in compiled.regions:
        cost = (scaled(r.bytes, "B"), scaled(r.flops, ""), str(r.launches))
        table.add_row(*_plain(r.name, r.kind, r.ops), *cost)
        notes.append(Text.assemble((r.name, "bold"), f": {r.why}"))
    notes += [Text(f"rewritten: {law}", "cyan") for law in compiled.rewrites]
    notes += [Text(f"shared: {value}", "cyan") for value in compiled.shared]
    notes += [Text(f"refused: {reason}", "yellow") for reason in compiled.refusals]
    notes += [Text(f"decided again: {finding}", "magenta") for finding in compiled.again]
    return Group(table, *notes)


def timings_table(timings: Timings) -> RenderableType:
    """One line for each variant (its time over the candidate's as `speedup`), then the verdict."""
    shape = "x".join(str(n) for n in timings.conditions.get("input", ()))
    table = plain_table(f"Timings: input {shape}, float32 matmul {timings.precision}")
    table.add_column("variant", no_wrap=True)
    for heading in ("median ms", "p10 - p90", "host ms", "runs", "speedup"):
        table.add_column(heading, justify="right", no_wrap=True)
    if any(row.note for row in timings.rows):
        table.add_column("note", overflow="fold")
    ours = timings.row(CANDIDATE)
    for row in timings.rows:
        cells = _timing_cells(row, ours)[: len(table.columns)]
        table.add_row(*cells, style="bold" if row.name == CANDIDATE else "")
    return Group(table, _verdict(timings), Text(_conditions(timings), "dim"))


def summary_table(results: Sequence[tuple[str, bool | None, Timings]]) -> Table:
    """One line for each model: certified or not, and the times that matter."""
    table = plain_table("Summary: times in ms")
    table.add_column("model", no_wrap=True)
    table.add_column("certified", no_wrap=True)
    for heading in (*BASELINES, "ours", "speedup"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, certified, timings in results:
        cells = [_milliseconds(timings.row(n)) for n in (*BASELINES, CANDIDATE)]
        speedup = f"{timings.speedup:.2f}x" if timings.speedup else "-"
        table.add_row(escape(name), _yes_or_no(certified), *cells, Text(speedup, "bold"))
    table.caption = "speedup: over the fastest of the baselines shown, in the same run"
    return table


def plain_table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)


def _plain(*cells: str) -> list[str]:
    return [escape(cell) for cell in cells]


def _timing_cells(row: Timing, ours: Timing | None) -> list[str]:
    note = escape(row.note)
    if row.median_ms is None:
        return [row.name, "-", "-", "-", "-", "-", note]
    relation = ""
    if ours is not None and ours.median_ms and row.name != CANDIDATE:
        relation = f"{row.median_ms / ours.median_ms:.2f}x"
    spread = f"{row.p10_ms:.4g} - {row.p90_ms:.4g}"
    return [
        row.name,
        f"{row.median_ms:.4g}",
        spread,
        f"{row.host_ms:.4g}",
        str(row.runs),
        relation,
        note,
    ]


def _verdict(timings: Timings) -> Text:
    if timings.problems:
        return Text("\n".join(f"NOT VALID: {p}" for p in timings.problems), "bold red")
    best = timings.best_baseline
    claim = f"{timings.speedup:.2f}x over {best.name}, the best baseline" if best else "no baseline"
    checked = "result checked again after timing" if timings.verified else "result not checked"
    floor = f"floor {timings.floor_ms:.4g} ms ({timings.floor_why})" if timings.floor_ms else ""
    return Text("; ".join(part for part in (claim, checked, floor) if part), "green")


def _conditions(timings: Timings) -> str:
    c: dict[str, Any] = timings.conditions
    return (
        f"{timings.device}; torch {timings.torch}; {c.get('mode')} mode; "
        f"{c.get('input_sets')} rotated sets of inputs; "
        f"{scaled(c.get('flushed_bytes', 0), 'B')} flushed before each call; {c.get('clock')}"
    )


def _milliseconds(row: Timing | None) -> str:
    return f"{row.median_ms:.4g}" if row is not None and row.median_ms is not None else "-"


def _yes_or_no(certified: bool | None) -> Text:
    if certified is None:
        return Text("not asked", "dim")
    return Text("yes", "green") if certified else Text("NO", "bold red")
