"""Compiled and Timings in, rich renderables out; every table fits 100 columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from kernelwright.bench.timings import BASELINES, CANDIDATE, TF32, Timing, Timings
from kernelwright.units import scaled

if TYPE_CHECKING:
    from kernelwright.bench.saved import Then
    from kernelwright.check import Checked
    from kernelwright.compiled import Compiled
    from kernelwright.ledger import LedgerRow
    from kernelwright.profile import Difference, Profile

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
    more = [_beside_table(timings)]
    if timings.training:
        more += [_training_table(timings), Text(training_line(timings))]
    return Group(table, *more, _verdict(timings), Text(_conditions(timings), "dim"))


def _beside_table(timings: Timings) -> RenderableType:
    """Each way to run the model in IEEE float32 and in TF32, and what else there is to know."""
    rows = {row.name: row for row in timings.rows}
    reduced = any(name.endswith(TF32) for name in rows)
    table = plain_table("One call that is waited for, its memory, and what it took to get there")
    table.add_column("variant", no_wrap=True)
    main = "IEEE ms" if timings.precision == "highest" else "ms"
    headings = (main, *(["TF32 ms"] if reduced else []), "call ms", "peak memory", "compile s")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for name, row in rows.items():
        if name.endswith(TF32) or row.median_ms is None:
            continue
        peak = "-" if row.peak_bytes is None else scaled(row.peak_bytes, "B")
        cells = [_milliseconds(row), *([_milliseconds(rows.get(name + TF32))] if reduced else [])]
        cells.append("-" if row.call_ms is None else f"{row.call_ms:.4g}")
        cells += [peak, "-" if row.compile_s is None else f"{row.compile_s:.1f}"]
        shown = "compile (default)" if name == "compile" else name
        table.add_row(shown, *cells, style="bold" if name == CANDIDATE else "")
    return table


def _training_table(timings: Timings) -> RenderableType:
    table = plain_table("A training step: forward, loss and backward")
    table.add_column("variant", no_wrap=True)
    for heading in ("median ms", "p10 - p90", "peak memory", "runs"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("note", overflow="fold")
    for row in timings.training:
        cells = ["-"] * 4
        if row.median_ms is not None:
            peak = "-" if row.peak_bytes is None else scaled(row.peak_bytes, "B")
            spread = f"{row.p10_ms:.4g} - {row.p90_ms:.4g}"
            cells = [f"{row.median_ms:.4g}", spread, peak, str(row.runs)]
        table.add_row(row.name, *cells, escape(row.note))
    return table


def training_line(timings: Timings) -> str:
    """What a training step gains or loses, in one line."""
    times = {row.name: row for row in timings.training}
    gain = timings.training_gain
    if gain is None:
        why = next((row.note for row in timings.training if row.note), "it was not measured")
        return f"A training step was not timed: {why}."
    eager, ours = times["eager"].median_ms, times[CANDIDATE].median_ms
    word = "gains" if gain >= 1 else "loses"
    return (
        f"A training step {word}: {gain:.2f}x as fast as eager's "
        f"({ours:.4g} ms against {eager:.4g} ms)."
    )


def compared_table(path: str, rows: Sequence[Then]) -> RenderableType:
    """What was saved beside what is now."""
    table = plain_table(f"Then ({path}) and now")
    table.add_column("variant", no_wrap=True)
    for heading in ("then ms", "now ms", "gain"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for row in rows:
        told = "" if row.clear else "within the spread"
        cells = (f"{row.then_ms:.4g}", f"{row.now_ms:.4g}", f"{row.ratio:.2f}x")
        table.add_row(row.name, *cells, Text(told, "dim"))
    return table


def profile_table(found: Profile) -> RenderableType:
    """One line for each step: what it took, and what was predicted of it."""
    title = f"Profile of {found.model}: medians of {found.calls} calls, in us"
    table = plain_table(title)
    table.add_column("step", overflow="fold")
    table.add_column("runs as", overflow="fold")
    for heading in ("launches", "us", "p10 - p90", "predicted", "ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in found.spent:
        guess = found.prediction(row.step)
        cells = (str(row.launches), f"{row.us:.4g}", f"{row.low:.4g} - {row.high:.4g}")
        told = (f"{guess:.4g}", f"{row.us / guess:.2f}") if guess else ("-", "-")
        runs = row.name if row.name != row.step else ""
        table.add_row(*_plain(row.step or "(no step)", runs), *cells, *told)
    rest = found.call_us - found.told_us
    note = f"A call takes {found.call_us:.4g} us; {rest:.4g} of them are in no step."
    note += f" Predictions: {found.ceilings['bandwidth'] / 1e9:.4g} GB/s and "
    note += f"{found.ceilings['flops'] / 1e9:.4g} GFLOP/s, {found.ceilings['where']}."
    return Group(table, Text(note, "dim"))


def difference_table(
    names: Sequence[str], pair: Sequence[Profile], rows: Sequence[Difference]
) -> RenderableType:
    """Two profiles side by side, step by step."""
    table = plain_table(f"A: {names[0]}, B: {names[1]}; us a call")
    table.add_column("step", overflow="fold")
    for heading in ("A", "B", "B - A", "B / A"):
        table.add_column(heading, justify="right", no_wrap=True)
    whole = [(row.name, row.before, row.after) for row in rows]
    for name, before, after in [*whole, ("a call", pair[0].call_us, pair[1].call_us)]:
        cells = [f"{t:.4g}" if t is not None else "-" for t in (before, after)]
        change = f"{(after or 0) - (before or 0):+.4g}"
        ratio = f"{after / before:.2f}" if before and after else "-"
        table.add_row(*_plain(name), *cells, change, ratio, style="bold" * (name == "a call"))
    return table


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
