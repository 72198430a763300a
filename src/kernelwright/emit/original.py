"""The user's part of an emitted file: it defines `Model` in any directory, in a plain Python.

In: a Problem, and classes that the generated part will name (those of nested inputs and outputs).
Out: the text, and how it calls those classes. A model file is repeated as it was written, with what
stood beside it inside (inlined.py); the class of a live module is imported, or written down with
all that it needs where no other Python could import it (collected.py).
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterable
from dataclasses import dataclass

from kernelwright.emit.annotations import without_future
from kernelwright.emit.apart import free
from kernelwright.emit.collected import Collector, import_of
from kernelwright.emit.inlined import with_neighbours
from kernelwright.emit.scopes import bound, used
from kernelwright.errors import UnsupportedError
from kernelwright.lent import lend
from kernelwright.loading import place_of
from kernelwright.problem import Problem

CODING = re.compile(r"^([ \t\f]*#.*?coding[:=][ \t]*)([-\w.]+)", re.MULTILINE)


@dataclass(frozen=True)
class Original:
    """The text, and the names by which the classes that were asked for are called behind it."""

    text: str
    names: dict[type, str]


def original_source(problem: Problem) -> str:
    return original(problem).text


def original(problem: Problem, classes: Iterable[type] = ()) -> Original:
    """The user's part, with a name for each of the classes."""
    if problem.source is None:
        return _live(problem, list(classes))
    return _file(problem, list(classes))


# ---- a file ---------------------------------------------------------------------------------


def _file(problem: Problem, classes: list[type]) -> Original:
    assert problem.source is not None and problem.path is not None
    text = without_future(in_utf8(problem.source))
    text, neighbours = with_neighbours(text, place_of(problem.path))
    taken = {*bound(text), *used(text)}
    names: dict[type, str] = {}
    lines = []
    for kind in classes:
        found = _known_as(kind, problem.user)
        if found is None:
            found = free(kind.__name__, taken)
            lines.append(_import_line(kind, found, neighbours))
        names[kind] = found
    return Original(text.rstrip("\n") + "\n" + "".join(["\n", *lines] if lines else []), names)


def in_utf8(text: str) -> str:
    """The emitted file is UTF-8, whatever encoding the first two lines of the original name."""
    head = text.split("\n", 2)[:2]
    for i, line in enumerate(head):
        if match := CODING.match(line):
            head[i] = f"{match[1]}utf-8{line[match.end() :]}"
            return "\n".join([*head, *text.split("\n", 2)[2:]])
    return text


def _known_as(kind: type, user: types.ModuleType | None) -> str | None:
    """How the user's own module reaches a class: `Output`, `Outer.Output` or `helpers.Output`."""
    space = vars(user) if user is not None else {}
    for name, value in space.items():
        if value is kind and name.isidentifier():
            return name
    path = kind.__qualname__.split(".")
    for name, value in space.items():
        inside = path[1:] if isinstance(value, type) and name == path[0] else path
        if isinstance(value, types.ModuleType | type) and _attribute(value, inside) is kind:
            return ".".join([name, *inside])
    return None


def _attribute(value: object, path: list[str]) -> object:
    for part in path:
        value = getattr(value, part, None)
    return value


def _import_line(kind: type, name: str, neighbours: dict[str, str]) -> str:
    top, dot, rest = kind.__module__.partition(".")
    if top in neighbours and "." not in kind.__qualname__:
        module = neighbours[top] + dot + rest
    elif (place := import_of(kind)) is not None and "." not in place[1]:
        module = place[0].__name__
    else:
        raise UnsupportedError(
            f"The forward takes or returns a {kind.__qualname__}, which the emitted file cannot "
            "name; define the class at the top of the model's file."
        )
    return f"from {module} import {kind.__name__} as {name}\n".replace(
        f" as {kind.__name__}\n", "\n"
    )


# ---- a live module --------------------------------------------------------------------------


def _live(problem: Problem, classes: list[type]) -> Original:
    """The class of the module, those that are asked for, and where possible those of its parts."""
    collector = Collector()
    kind = type(problem.module)
    if kind.__name__ == "Model":
        collector.taken.discard("Model")
    try:
        root = collector.name_of(kind, kind.__name__)
    except UnsupportedError as error:
        if classes:
            raise
        return Original(lend(kind, str(error)), {})
    names = {wanted: collector.name_of(wanted, wanted.__name__) for wanted in classes}
    for part in dict.fromkeys(type(m) for m in problem.module.modules()):
        if part is not kind and import_of(part) is None:
            collector.try_name(part)
    alias = "" if root == "Model" else f"\n\nModel = {root}\n"
    return Original(collector.text() + alias, names)
