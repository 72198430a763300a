"""Files appear whole or not at all: written beside the target under another name, then renamed."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from kernelwright.errors import InputError


def check_writable(target: Path) -> None:
    """Find out before the long work, not after it, that a file cannot be written."""
    if target.is_dir():
        raise InputError(f"The output {target} is a folder; give the name of a file.")
    if not target.parent.is_dir():
        raise InputError(f"The folder {target.parent} does not exist; create it first.")
    with staged(target, ""):
        return


@contextlib.contextmanager
def staged(target: Path, text: str) -> Iterator[Path]:
    """A file with this text beside the target, gone afterwards unless it was renamed."""
    stage = target.with_name(f".{target.stem}.{os.getpid()}.py")
    try:
        stage.write_text(text, encoding="utf-8")
    except OSError as error:
        stage.unlink(missing_ok=True)
        raise InputError(f"The output {target} cannot be written: {error.strerror}.") from error
    try:
        yield stage
    finally:
        stage.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time; a lock ends with its process, so it cannot be left behind."""
    with path.open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        yield


def write_atomically(target: Path, text: str) -> None:
    with staged(target, text) as stage:
        os.replace(stage, target)
