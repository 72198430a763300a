"""What tasks made, kept under their keys: in a folder, or wherever fsspec can write.

A key names a content, so two that write under one key write the same: a task that ran twice leaves
what it would have left once.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from kernelwright.errors import InputError

MOST_BYTES, MOST_FILES = 16 << 20, 64


def keep(made: Path, where: str | None, key: str) -> list[str]:
    """Copy the plain files of a folder; their names come back."""
    if where is None or not made.is_dir():
        return []
    files = [p for p in sorted(made.iterdir()) if p.is_file() and not p.is_symlink()]
    files = [p for p in files if p.stat().st_size <= MOST_BYTES][:MOST_FILES]
    if is_remote(where):
        _put(files, f"{where.rstrip('/')}/{key}")
    else:
        _copy(files, Path(where) / key)
    return [p.name for p in files]


def is_remote(where: str) -> bool:
    return "://" in where


def _copy(files: list[Path], target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for path in files:
        stage = target / f".{path.name}.{os.getpid()}"
        shutil.copyfile(path, stage)
        os.replace(stage, target / path.name)


def _put(files: list[Path], target: str) -> None:
    system, root = filesystem(target)
    system.makedirs(root, exist_ok=True)
    for path in files:
        system.put_file(str(path), f"{root}/{path.name}")


def filesystem(url: str) -> tuple[Any, str]:
    """What fsspec has for a URL; asked for at the start too, so that nothing is lost at the end."""
    try:
        import fsspec
    except ImportError as error:
        raise InputError(f"{url} needs fsspec; install it, or give a folder.") from error
    try:
        found: tuple[Any, str] = fsspec.core.url_to_fs(url)
    except (ValueError, ImportError) as error:
        raise InputError(f"{url} cannot be written: {error}") from error
    return found
