"""Files appear whole or not at all: written beside the target under another name, then renamed.

A link is followed, and what it leads to is replaced. What is no regular file (a folder, a device, a
pipe) is never replaced: renaming would remove it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from kernelwright.errors import InputError


def output_path(model: str | Path, output: str | Path | None) -> Path:
    """Where the compiled file of a model goes: where it was told to, or beside the model."""
    path = Path(model)
    return Path(output) if output else path.parent / f"{path.stem}_new.py"


def check_writable(target: Path) -> None:
    """Find out before the long work, not after it, that a file cannot be written."""
    with staged(target, ""):
        return


@contextlib.contextmanager
def staged(target: Path, text: str) -> Iterator[Path]:
    """A file with this text beside the target, gone afterwards unless it was put in its place."""
    with _told(target):
        file = _file(target)
        stage = file.with_name(f".{file.stem}.{os.getpid()}.py")
    try:
        with _told(target):
            stage.write_text(text, encoding="utf-8")
        yield stage
    finally:
        with contextlib.suppress(OSError):
            stage.unlink(missing_ok=True)


def put(stage: Path, target: Path) -> None:
    """Give a staged file its name, unless something else than a file has come to bear it."""
    with _told(target):
        os.replace(stage, _file(target))


def write_atomically(target: Path, text: str) -> None:
    with staged(target, text) as stage:
        put(stage, target)


def _file(target: Path) -> Path:
    """Where the target really is, behind all links: a regular file, or nothing yet."""
    file = Path(os.path.realpath(target))
    if file.is_dir():
        raise InputError(f"The output {target} is a folder; give the name of a file.")
    if (target.exists() or os.path.lexists(file)) and not target.is_file():
        raise InputError(
            f"The output {target} is no regular file and would be lost; give the name of a file."
        )
    if not file.parent.is_dir():
        raise InputError(f"The folder {file.parent} does not exist; create it first.")
    return file


@contextlib.contextmanager
def _told(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"The output {target} cannot be written: {error.strerror}.") from error
