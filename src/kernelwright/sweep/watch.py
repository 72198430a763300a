"""A sweep under way, for whoever watches: what is done, what failed, what is ahead, how long.

In: rows as they end. Out: a live table on a terminal, a line now and then where there is none. The
time left is told as a range from the tasks that ended in this run, and not before there are enough.
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from kernelwright import streams
from kernelwright.sweep.task import Row, passed

ENOUGH = 5  # ends before the time left is told
SPREAD = 2.0  # standard errors
LAST = 6  # rows that stand below
LINE_SECONDS = 10.0


class Estimate:
    """How long the rest takes, from the times between ends: those say how many run at once."""

    def __init__(self, now: float) -> None:
        self.last = now
        self.count, self.mean, self.squares = 0, 0.0, 0.0

    def ended(self, now: float) -> None:
        """Welford's running mean and variance."""
        gap, self.last = now - self.last, now
        self.count += 1
        before = gap - self.mean
        self.mean += before / self.count
        self.squares += before * (gap - self.mean)

    def left(self, ahead: int) -> tuple[float, float] | None:
        """Seconds, from and to."""
        if self.count < ENOUGH or not ahead:
            return None
        variance = self.squares / (self.count - 1)
        doubt = SPREAD * math.sqrt(variance * (ahead / self.count + 1) / ahead)
        return max(0.0, self.mean - doubt) * ahead, (self.mean + doubt) * ahead


def span(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Watch:
    """Counts, and shows them unless told to be quiet."""

    def __init__(self, total: int, known: int, quiet: bool) -> None:
        self.total, self.known, self.quiet = total, known, quiet
        self.counts: Counter[str] = Counter()
        self.last: list[Row] = []
        self.started = self._said = time.monotonic()
        self.estimate = Estimate(self.started)
        self.console = Console(file=sys.stderr, highlight=False)
        live = self.console.is_terminal and not quiet
        self.live = Live(console=self.console, auto_refresh=False) if live else None

    @property
    def done(self) -> int:
        return self.known + sum(self.counts.values())

    @property
    def ahead(self) -> int:
        return max(0, self.total - self.done)

    def ended(self, row: Row) -> None:
        now = time.monotonic()
        self.estimate.ended(now)
        self.counts[row["status"]] += 1
        self.last = [*self.last, row][-LAST:]
        if self.live is not None:
            self.live.update(self, refresh=True)
        elif not self.quiet and (now - self._said > LINE_SECONDS or not self.ahead):
            self._said = now
            with streams.words():
                self.console.print(self.line(), soft_wrap=True)

    def line(self) -> str:
        failed = sum(n for status, n in self.counts.items() if status != "passed")
        left = self.estimate.left(self.ahead)
        told = f", {span(left[0])} to {span(left[1])} left" if left else ""
        return f"{self.done} of {self.total} done, {failed} failed, {self.ahead} ahead{told}"

    def __rich__(self) -> Any:
        table = Table.grid(padding=(0, 2))
        for row in self.last:
            style = "green" if passed(row) else "red"
            speed = f"{row['speedup']:.2f}x" if row.get("speedup") else ""
            name = f"{row['problem']} {row['candidate']}".strip()
            why = Text(row["reason"], "dim", overflow="ellipsis", no_wrap=True)
            table.add_row(Text(row["status"], style), Text(name), Text(speed), why)
        bar = ProgressBar(total=max(1, self.total), completed=self.done)
        kinds = ", ".join(f"{n} {status}" for status, n in sorted(self.counts.items()))
        return Group(table, bar, Text(self.line(), "bold"), Text(kinds, "dim"))

    def __enter__(self) -> Watch:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.live is not None:
            self.live.stop()
