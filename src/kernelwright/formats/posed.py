"""What a problem is before anything of it has run: its form, its texts, and the cases to take.

In: files. Out: frozen values that JSON can carry to another machine. Bytes that are no UTF-8 come
through as they are, so that a file that nobody can read is refused where it is loaded.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelwright.errors import InputError

Files = dict[str, str]  # texts by name

MOST_BYTES = 16 << 20  # of one file


@dataclass(frozen=True)
class Case:
    """One choice of inputs; `spec` is what the form's own files say of it."""

    label: str = ""
    spec: Mapping[str, Any] = field(default_factory=dict)
    timed: bool = True


@dataclass(frozen=True)
class Posed:
    """A problem as it was found: `main` names the first of its files."""

    name: str
    form: str
    main: str
    files: Files


@dataclass(frozen=True)
class Format:
    """One form. `cases` is None where only running the problem tells how many there are."""

    name: str
    what: str
    matches: Callable[[Path], bool]
    read: Callable[[Path], Files]
    main: Callable[[Path], str]
    cases: Callable[[Posed], list[Case] | None]
    model: Callable[[Posed, Case], str]
    candidate: Callable[[Posed, Files], Files]
    submission: Callable[[Posed, str], Files]


def text_of(path: Path) -> str:
    """The bytes of a file as text, whatever they are."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InputError(f"{path.name} has more than {MOST_BYTES >> 20} MB; it is no source.")
        return path.read_bytes().decode("utf-8", errors="surrogateescape")
    except OSError as error:
        raise InputError(f"{path.name} cannot be read: {error.strerror}.") from error


def write_files(files: Files, folder: Path) -> None:
    for name, text in files.items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise InputError(f"The file name {name} leads out of the problem's folder.")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("utf-8", errors="surrogateescape"))


def with_neighbours(path: Path) -> Files:
    """A Python file and what it imports from beside it, and these in turn."""
    found: Files = {}
    todo = [path]
    while todo:
        current = todo.pop()
        name = current.relative_to(path.parent).as_posix()
        if name not in found:
            found[name] = text_of(current)
            todo += [beside for beside in _imported(found[name], current.parent)]
    return found


def _imported(text: str, folder: Path) -> Iterator[Path]:
    for node in ast.walk(parsed(text) or ast.Module([], [])):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.level < 2:
            names = [node.module] if node.module else [alias.name for alias in node.names]
        for name in names:
            beside = folder.joinpath(*name.split("."))
            for file in (beside.with_suffix(".py"), beside / "__init__.py"):
                if file.is_file():
                    yield file


def parsed(text: str) -> ast.Module | None:
    """None where it is no Python."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None


def defined(text: str) -> dict[str, type[ast.AST]]:
    """The functions and classes at the top of a file, in their order."""
    tree = parsed(text)
    kinds = (ast.FunctionDef, ast.ClassDef)
    body = tree.body if tree else []
    return {node.name: type(node) for node in body if isinstance(node, kinds)}


def functions(text: str) -> list[str]:
    """Public ones that make no inputs."""
    own = [name for name, kind in defined(text).items() if kind is ast.FunctionDef]
    return [name for name in own if not name.startswith(("_", "get_"))]


def answer_files(path: Path) -> Files:
    """What was handed in: a file with what it imports from beside it, the first one first."""
    return with_neighbours(path) if path.suffix == ".py" else {path.name: text_of(path)}


def first_text(answer: Files) -> str:
    return next(iter(answer.values()))


def with_class(answer: Files, wrapper: str) -> Files:
    """What was handed in, with a ModelNew behind it unless it has one.

    In the same text: what is certified is the text that the judge has read.
    """
    name, text = next(iter(answer.items()))
    if defined(text).get("ModelNew") is ast.ClassDef:
        return dict(answer)
    return {**answer, name: f"{text.rstrip()}\n\n\n{wrapper}"}
