"""The results of a sweep on disk: one JSON line a task, appended and on the disk before the next.

In: rows. Out: a file that grows by whole lines whoever is killed when: what a killed driver left of
its last line is cut off before the next one is appended. The one idea: the file is the only state,
so that to resume is to read it.
"""

from __future__ import annotations

import bisect
import contextlib
import fcntl
import json
import os
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kernelwright.errors import InputError
from kernelwright.sweep.task import Row
from kernelwright.version import SCHEMA

RESULTS, ABOUT, GUARD = "results.jsonl", "sweep.json", "lock"


class Journal:
    """The results of one folder, held by one driver at a time."""

    def __init__(self, folder: Path, resume: bool) -> None:
        self.folder, self.path = folder, folder / RESULTS
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._guard = (folder / GUARD).open("w")
        except OSError as error:
            raise InputError(f"The folder {folder} cannot be used: {error.strerror}.") from error
        try:
            fcntl.flock(self._guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InputError(
                f"Another sweep writes to {folder}; wait for it, or choose another --out."
            ) from error
        if not resume and self.path.exists() and self.path.stat().st_size:
            raise InputError(
                f"{folder} has results already; --resume goes on with them, --out chooses another."
            )
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._cut_torn()
        self.done = Done(row["key"] for row in rows(folder))

    def append(self, row: Row) -> None:
        """On the disk when this returns."""
        data = (json.dumps(row) + "\n").encode()
        try:
            while data:
                data = data[os.write(self._file, data) :]
            os.fsync(self._file)
        except OSError as error:
            raise InputError(
                f"The results in {self.path} cannot be written: {error.strerror}. Make room, and "
                "go on with --resume."
            ) from error

    def _cut_torn(self) -> None:
        """A last line without its end was being written when its driver was killed."""
        size = os.fstat(self._file).st_size
        end = size
        while end > 0:
            start = max(0, end - 4096)
            at = os.pread(self._file, end - start, start).rfind(b"\n")
            if at >= 0:
                end = start + at + 1
                break
            end = start
        if end != size:
            os.ftruncate(self._file, end)

    def close(self) -> None:
        os.close(self._file)
        self._guard.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Done:
    """Which tasks have a result: eight bytes of each key, so that a million take 8 MB."""

    def __init__(self, keys: Iterator[str]) -> None:
        self._known = array("Q", sorted(_number(key) for key in keys))

    def __contains__(self, key: str) -> bool:
        wanted = _number(key)
        at = bisect.bisect_left(self._known, wanted)
        return at < len(self._known) and self._known[at] == wanted

    def __len__(self) -> int:
        return len(self._known)


def _number(key: str) -> int:
    return int(key[:16], 16)


def rows(folder: Path) -> Iterator[Row]:
    """The results of a sweep, of each task the last one."""
    path = folder / RESULTS
    if not path.is_file():
        return
    with path.open("rb") as file:
        for line in file:
            with contextlib.suppress(ValueError):
                row = json.loads(line)
                if isinstance(row, dict) and row.get("schema") == SCHEMA and "status" in row:
                    yield row


def about(folder: Path) -> dict[str, Any]:
    """What a sweep was asked for."""
    try:
        found: dict[str, Any] = json.loads((folder / ABOUT).read_text())
    except (OSError, ValueError) as error:
        raise InputError(
            f"{folder} holds no sweep; give the folder of an earlier --out."
        ) from error
    return found
