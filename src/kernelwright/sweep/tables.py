"""What a sweep found, as tables for a terminal of 100 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from kernelwright.report.tables import plain_table

if TYPE_CHECKING:
    from kernelwright.sweep.page import Sheet
    from kernelwright.sweep.run import Swept


def swept_table(swept: Swept) -> RenderableType:
    from kernelwright.sweep.page import sheets

    parts: list[RenderableType] = [
        _table(sheet) for sheet in sheets(swept.summary, swept.comparison)
    ]
    return Group(*parts, Text(f"Wrote {swept.out / 'summary.html'}"))


def _table(sheet: Sheet) -> RenderableType:
    table = plain_table(sheet.title)
    for number, head in enumerate(sheet.heads):
        words = number < sheet.left or head in ("meaning", "for example", "reason", "status")
        table.add_column(head, justify="left" if words else "right", overflow="fold")
    for row in sheet.rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
