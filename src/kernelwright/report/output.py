"""Where a command's words go: progress and errors to stderr, tables to stdout, JSON where asked."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

from kernelwright import streams
from kernelwright.errors import KernelwrightError
from kernelwright.files import write_atomically
from kernelwright.version import SCHEMA

WIDTH = 100


class _Console(Console):
    """Rich's, but for what it does when nobody reads any more, which is to exit."""

    def on_broken_pipe(self) -> None:
        raise  # the BrokenPipeError that is being handled


class Output:
    """The streams of one command; `quiet` keeps errors and JSON alone."""

    def __init__(
        self, quiet: bool = False, json_path: str | None = None, command: str = ""
    ) -> None:
        self.quiet = quiet
        self._document: dict[str, Any] = {"schema": SCHEMA, "command": command, "error": None}
        self.json_path = json_path
        self._stdout = sys.stdout
        width = None if sys.stdout.isatty() else WIDTH
        self._tables = _Console(file=sys.stdout, width=width, highlight=False)
        self._progress = _Console(file=sys.stderr, width=width, highlight=False)
        self._last = time.perf_counter()

    def progress(self, name: str, summary: str) -> None:
        """A pass has ended: its name, what came of it, and the time since the one before."""
        now = time.perf_counter()
        elapsed, self._last = now - self._last, now
        if not self.quiet:
            line = Text.assemble(
                (f"{name:>14}", "bold"), f"  {summary}", (f"  {elapsed:.1f} s", "dim")
            )
            with streams.words():
                self._progress.print(line, soft_wrap=True)

    def show(self, renderable: RenderableType) -> None:
        """Print a table, unless told to be quiet or stdout is taken by JSON."""
        if not self.quiet and self.json_path != "-":
            with streams.results(self._stdout):
                self._tables.print(renderable)

    def notice(self, *sentences: str) -> None:
        """What must not be overlooked: a loud line each, beside the tables."""
        beside = self.json_path == "-"
        console = self._progress if beside else self._tables
        with streams.words() if beside else streams.results(self._stdout):
            for sentence in sentences:
                if not self.quiet:
                    console.print(Text(sentence, "bold black on yellow"), soft_wrap=True)

    def json(self, value: dict[str, Any]) -> None:
        """What the report says, once it is written."""
        self._document |= value

    def close(self, error: KernelwrightError | None = None) -> None:
        """Write the report to the file asked for, or to stdout for `-`; a failure is in it too."""
        if self.json_path is None:
            return
        if error is not None:
            kind, code = type(error).__name__, error.exit_code
            told = " ".join(str(error).split())
            self._document["error"] = {"kind": kind, "message": told, "exit_code": code}
        text = json.dumps(self._document, indent=2, default=str) + "\n"
        if self.json_path == "-":
            with streams.results(self._stdout):
                self._stdout.write(text)
        else:
            write_atomically(Path(self.json_path), text)
