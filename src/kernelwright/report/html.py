"""Results as HTML for a notebook: the same tables as in the terminal, everything escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from kernelwright.bench.timings import CANDIDATE, Timings
from kernelwright.report import notices
from kernelwright.verify.certificate import MARKS, Certificate

if TYPE_CHECKING:
    from kernelwright.compiled import Compiled
    from kernelwright.report.outcome import Outcome


def compiled_html(compiled: Compiled) -> str:
    rows = [(r.op, r.origin, r.fate, r.where, r.why) for r in compiled.ledger]
    table = _table(str(compiled.problem), ("operator", "from", "fate", "where", "why"), rows)
    lines = [f"rewritten: {law}" for law in compiled.rewrites]
    return _loud(notices.of_compiled(compiled)) + table + _notes(lines)


def certificate_html(certificate: Certificate) -> str:
    rows = [
        (check.name, MARKS[check.passed], *map(_figure, figures), check.detail)
        for check in certificate.checks
        for figures in [(check.error, check.eager_error, check.allowed)]
    ]
    table = _table(certificate.title, ("check", "", "error", "eager", "allowed", ""), rows)
    weak = [f"weak: {sentence}" for sentence in certificate.weak]
    return table + _notes(weak) + _loud([certificate.verdict])


def timings_html(timings: Timings) -> str:
    ours = timings.row(CANDIDATE)
    rows = []
    for row in timings.rows:
        relation = ""
        if ours is not None and ours.median_ms and row.median_ms and row.name != CANDIDATE:
            relation = f"{row.median_ms / ours.median_ms:.2f}x"
        median = "-" if row.median_ms is None else f"{row.median_ms:.4g}"
        rows.append((row.name, median, str(row.runs), relation, row.note))
    heads = ("variant", "median ms", "runs", "speedup", "note")
    title = f"{timings.model} on {timings.device}, float32 matmul {timings.precision}"
    told = [*(f"NOT VALID: {p}" for p in timings.problems), *notices.of_timings(timings)]
    return _table(title, heads, rows) + _loud(told)


def outcome_html(outcome: Outcome) -> str:
    parts = [compiled_html(outcome.compiled)]
    if outcome.certificate is not None:
        parts.append(certificate_html(outcome.certificate))
    if outcome.timings is not None:
        parts.append(timings_html(outcome.timings))
    return "".join([*parts, _notes([f"written: {outcome.output}"])])


def _table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(h)}</th>" for h in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return (
        f"<table><caption>{escape(title)}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def _notes(lines: Iterable[str]) -> str:
    return "".join(f"<div>{escape(line)}</div>" for line in lines)


def _loud(lines: Iterable[str]) -> str:
    return "".join(f"<div><strong>{escape(line)}</strong></div>" for line in lines)


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"
