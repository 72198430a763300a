"""A table as Markdown, with the figures behind it, and the files that keep both."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Sheet:
    """Rows of text under a title, numbers behind the `left` columns; the record is for JSON."""

    title: str
    columns: tuple[str, ...]
    left: int = 1
    rows: list[tuple[str, ...]] = field(default_factory=list)
    record: list[dict[str, Any]] = field(default_factory=list)

    def add(self, cells: Sequence[str], record: dict[str, Any]) -> None:
        self.rows.append(tuple(cells))
        self.record.append(record)

    def put(self, labels: Mapping[str, Any], cells: Sequence[str], record: dict[str, Any]) -> None:
        """In the place of the row with these labels, or as a new one."""
        for i, known in enumerate(self.record):
            if all(known.get(name) == value for name, value in labels.items()):
                self.rows[i], self.record[i] = tuple(cells), record
                return
        self.add(cells, record)

    def markdown(self) -> str:
        left = ["---"] * self.left + ["---:"] * (len(self.columns) - self.left)
        lines = [f"| {' | '.join(cells)} |" for cells in (self.columns, *self.rows)]
        lines.insert(1, f"|{'|'.join(left)}|")
        return "\n".join([f"## {self.title}", "", *lines, ""])


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
