"""What was measured once, kept from run to run: one JSON file of entries by key for each theme.

In: a key. Out: the entry as JSON, or None; whoever keeps entries checks what is in them, since the
file may be damaged. One of another format is as if it were not there.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelwright.files import write_atomically


@dataclass(frozen=True)
class Notebook:
    """`place` says where the file is, `title` what its entries are called in it."""

    place: Callable[[], Path]
    title: str
    format: int

    def recall(self, key: str) -> Any:
        return self._entries(self.place()).get(key)

    def keep(self, key: str, entry: Any) -> None:
        """Add an entry to the file; others may be doing the same."""
        from filelock import FileLock

        file = self.place()
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(file.with_suffix(".lock")):
            entries = self._entries(file) | {key: entry}
            content = {"format": self.format, self.title: entries}
            write_atomically(file, json.dumps(content, indent=2, sort_keys=True) + "\n")

    def _entries(self, file: Path) -> dict[str, Any]:
        try:
            content = json.loads(file.read_text())
        except (OSError, ValueError, RecursionError):
            return {}
        if not isinstance(content, dict) or content.get("format") != self.format:
            return {}
        entries = content.get(self.title)
        return entries if isinstance(entries, dict) else {}
