"""What doctor found and what the cache holds, as tables for a terminal of 100 columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kernelwright import cache
from kernelwright.report.tables import plain_table
from kernelwright.units import scaled

if TYPE_CHECKING:
    from kernelwright.cache import Cleaned, Entry
    from kernelwright.doctor import Diagnosis

MARKS = {True: ("works", "green"), False: ("FAILS", "bold red"), None: ("n/a", "dim")}


def diagnosis_table(diagnosis: Diagnosis) -> RenderableType:
    """What is installed, then what works; below them what to do about the rest."""
    installed = plain_table("Installed")
    installed.show_header = False
    installed.add_column("", no_wrap=True)
    installed.add_column("", overflow="fold")
    for fact in diagnosis.facts:
        value = Text(fact.value) if fact.value is not None else Text("none", "dim")
        installed.add_row(Text(fact.name), value)
    tried = plain_table(f"Tried (the default backend is {diagnosis.backend})")
    tried.show_header = False
    tried.add_column("", no_wrap=True)
    tried.add_column("", no_wrap=True)
    tried.add_column("", overflow="fold")
    for ability in diagnosis.abilities:
        told = Text(ability.detail)
        if not ability.works and ability.advice:
            told.append(f"; to do: {ability.advice}", "yellow")
        tried.add_row(Text(ability.name), Text(*MARKS[ability.works]), told)
    verdict = "The default backend works." if diagnosis.healthy else "The default backend FAILS."
    return Group(installed, tried, Text(verdict, "green" if diagnosis.healthy else "bold red"))


def cache_table(entries: Sequence[Entry]) -> Table:
    table = plain_table("Cache")
    table.add_column("kind", no_wrap=True)
    table.add_column("name", overflow="fold")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("last used", justify="right", no_wrap=True)
    for entry in entries:
        when = "being built" if entry.busy else _ago(entry.days)
        table.add_row(Text(entry.kind), Text(entry.path.name), scaled(entry.bytes, "B"), Text(when))
    return table


def size_line(entries: Sequence[Entry]) -> Text:
    total = scaled(sum(entry.bytes for entry in entries), "B")
    return Text(f"{total} in {len(entries)} entries of {cache.root()}")


def cleaned_table(cleaned: Cleaned) -> RenderableType:
    """Each thing that was removed, then the sum."""
    verb = "Would remove" if cleaned.dry_run else "Removed"
    lines = [Text(f"{verb} {e.path} ({scaled(e.bytes, 'B')})") for e in cleaned.removed]
    lines += [Text(f"Left {e.path}: it is being built", "yellow") for e in cleaned.busy]
    total = f"{len(cleaned.removed)} entries, {scaled(cleaned.bytes, 'B')}"
    return Group(*lines, Text(f"{verb} {total} of {cache.root()}.", "bold"))


def _ago(days: float) -> str:
    if days < 1:
        return f"{days * 24:.0f} h ago"
    return f"{days:.0f} d ago"
