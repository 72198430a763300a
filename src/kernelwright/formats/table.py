"""All forms, in the order in which they are tried, and how a folder is looked through.

In: a folder. Out: the problems in it, each with its path. A file of Python that poses nothing (a
helper of others) is none; one that is no Python is one, and is refused when its turn comes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from kernelwright.errors import InputError
from kernelwright.formats.function import FUNCTION
from kernelwright.formats.kernelbench import KERNELBENCH
from kernelwright.formats.kernelbot import KERNELBOT
from kernelwright.formats.posed import Format, Posed
from kernelwright.formats.sol import SOL

FORMATS = (KERNELBOT, SOL, FUNCTION, KERNELBENCH)
SKIPPED = ("__pycache__", "build")


def form_named(name: str) -> Format:
    return next(form for form in FORMATS if form.name == name)


def found(folder: Path) -> Iterator[tuple[Format, Path]]:
    """The problems of a folder and those below, by name; one path may be one problem."""
    if not folder.exists():
        raise InputError(f"There is no folder {folder}; give the path of a folder of problems.")
    yield from _found(folder)


def _found(folder: Path) -> Iterator[tuple[Format, Path]]:
    form = _form_of(folder)
    if form is not None:
        yield form, folder
    elif folder.is_dir():
        for entry in sorted(os.scandir(folder), key=lambda entry: _in_order(entry.name)):
            hidden = entry.name.startswith((".", "_")) or entry.name in SKIPPED
            if not hidden and (entry.is_dir() or entry.name.endswith(".py")):
                yield from _found(Path(entry.path))


def read(form: Format, path: Path, name: str) -> Posed:
    return Posed(name, form.name, form.main(path), form.read(path))


def _form_of(path: Path) -> Format | None:
    return next((form for form in FORMATS if form.matches(path)), None)


def _in_order(name: str) -> tuple[tuple[int, int | str], ...]:
    """`2_add` before `10_sub`, as people number."""
    parts: list[tuple[int, int | str]] = []
    digits = ""
    for character in name + "\0":
        if character.isdecimal() and character.isascii():
            digits += character
            continue
        if digits:
            parts.append((0, int(digits)))
            digits = ""
        parts.append((1, character))
    return tuple(parts)
