"""Entries are judged in processes of their own, and what they found is one line each in a file.

A worker that dies or says nothing for too long is a verdict about the sample that it was at; the
next worker goes on behind it.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from databases.cases import Entry

SCRIPT = Path(__file__).parent.parent / "torch_databases.py"
LIMIT = 300.0  # seconds without a word
ENTRIES = 60  # of one worker; the libraries that it loads stay in memory

Record = dict[str, Any]


class Worker:
    """One process; `judge` gives the records of an entry whatever happens to it."""

    def __init__(self, options: Sequence[str]) -> None:
        self.options, self.process, self.entries = options, None, 0
        self.said: Any = None
        self.lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def judge(self, entry: Entry) -> list[Record]:
        records: list[Record] = []
        while True:
            at, end = self._listen(entry, records)
            if end is None:
                return records
            records.append({**at, "verdict": {"outcome": "crashed", "why": end}})
            self.close()
            if at["sample"] < 0:
                return records

    def _listen(self, entry: Entry, records: list[Record]) -> tuple[Record, str | None]:
        """The sample under way, and how the worker ended there if it did."""
        process = self._started()
        at: Record = {"entry": str(entry), "sample": -1, "about": "making the samples"}
        done = 1 + max((r["sample"] for r in records), default=-1)
        request = json.dumps({"entry": str(entry), "done": done})
        try:
            process.stdin.write(request.encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            return at, self._death()
        while True:
            line = self._line()
            if line is None:
                return at, f"no answer within {LIMIT:.0f} seconds"
            if not line:
                return at, self._death()
            answer = json.loads(line)
            if "finished" in answer:
                return at, None
            if "error" in answer:
                outcome = "crashed" if at["sample"] >= 0 else "not made"
                verdict = {"outcome": outcome, "why": answer["error"]}
                records.append({**at, "verdict": verdict})
            elif "verdict" in answer:
                records.append({**at, **answer})
            else:
                at |= answer

    def _started(self) -> Any:
        self.entries += 1
        if self.process is not None and self.entries > ENTRIES:
            self.close()
        if self.process is None:
            self.entries = 1
            self.said = tempfile.TemporaryFile()  # noqa: SIM115
            command = [sys.executable, str(SCRIPT), "--worker", *self.options]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.said}
            self.process = subprocess.Popen(command, start_new_session=True, **pipes)
            self.lines = queue.SimpleQueue()
            arguments = (self.process.stdout, self.lines)
            threading.Thread(target=_read, args=arguments, daemon=True).start()
        return self.process

    def _line(self) -> bytes | None:
        """What the worker says next: nothing left once it has ended, None if it takes too long."""
        try:
            return self.lines.get(timeout=LIMIT)
        except queue.Empty:
            return None

    def _death(self) -> str:
        code = self.process.wait()
        self.said.seek(0)
        last = self.said.read()[-300:].decode(errors="replace").strip()
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return f"{name}: {last}"

    def close(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):  # it has died by itself
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


def _read(answers: Any, lines: queue.SimpleQueue[bytes]) -> None:
    for line in answers:
        lines.put(line)
    lines.put(b"")


def sweep(
    entries: Sequence[Entry], jobs: int, options: Sequence[str], heard: Callable[[Record], None]
) -> None:
    """Every entry is judged; `heard` gets each record as soon as its entry is done."""
    waiting: queue.SimpleQueue[Entry] = queue.SimpleQueue()
    for entry in entries:
        waiting.put(entry)
    lock = threading.Lock()

    def work() -> None:
        worker = Worker(options)
        try:
            while not waiting.empty():
                try:
                    entry = waiting.get_nowait()
                except queue.Empty:
                    return
                found = worker.judge(entry)
                with lock:
                    for record in found or [{"entry": str(entry), "sample": -1}]:
                        heard(record)
        finally:
            worker.close()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
