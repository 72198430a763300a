"""A table that is printed in a terminal and written as markdown, and the files that keep both."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table


@dataclass
class Sheet:
    """Rows of text under a title; the JSON record grows beside them."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    record: list[dict[str, Any]] = field(default_factory=list)

    def add(self, cells: Sequence[str], record: dict[str, Any]) -> None:
        self.rows.append(tuple(cells))
        self.record.append(record)

    def rich(self) -> Table:
        table = Table(title=self.title, title_justify="left", pad_edge=False)
        for i, column in enumerate(self.columns):
            table.add_column(column, justify="right" if i else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*(escape(cell) for cell in row))
        return table

    def markdown(self) -> str:
        rule = ["---"] + ["---:"] * (len(self.columns) - 1)
        lines = [self.columns, rule, *self.rows]
        return "\n".join([f"## {self.title}", "", *(f"| {' | '.join(x)} |" for x in lines), ""])


def file_stem(hardware: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", hardware.lower()).strip("-")


def write_results(
    folder: Path, stem: str, title: str, header: dict[str, Any], sheets: Sequence[Sheet]
) -> None:
    """`<stem>.json` with every figure and `<stem>.md` with the tables."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = {sheet.title: sheet.record for sheet in sheets}
    (folder / f"{stem}.json").write_text(json.dumps(header | {"parts": parts}, indent=1) + "\n")
    facts = "; ".join(f"{key} {value}" for key, value in header.items())
    body = "\n".join(sheet.markdown() for sheet in sheets)
    (folder / f"{stem}.md").write_text(f"# {title} on {header['device']}\n\n{facts}.\n\n{body}")
