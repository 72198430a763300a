"""Other values of the same kind, for arguments and attributes that a trace may have baked in.

In: a value, and the source in which it is used. Out: values that differ from it and that a model is
likely to accept: other numbers, the other boolean, strings that the source compares it with.
"""

from __future__ import annotations

import ast
import enum
import functools
import inspect
import math
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

UNKNOWN = "kernelwright"  # a string that no model compares anything with


def others(value: Any, literals: Iterable[str] = ()) -> list[Any]:
    """Values of the same type, none of them equal to the given one."""
    found: list[Any] = []
    if isinstance(value, enum.Enum):
        found = list(type(value))
    elif isinstance(value, bool):
        found = [not value]
    elif isinstance(value, int):
        found = [value + 1, value // 2, value * 2, value - 1]
    elif isinstance(value, float):
        found = _other_floats(value)
    elif isinstance(value, str):
        found = list(literals)
    elif isinstance(value, tuple | list) and value and all(type(x) is int for x in value):
        found = [type(value)(x + 1 for x in value)]
    distinct: list[Any] = []
    for other in found:
        if other != value and other not in distinct:
            distinct.append(other)
    return distinct


def _other_floats(value: float) -> list[float]:
    """The first stays a probability if the value is one."""
    if not math.isfinite(value):
        return [0.5]
    return [value + 0.25 if 0.0 <= value <= 0.75 else value / 2, -value - 1.0]


def literals(source_of: Any, name: str) -> list[str]:
    """Strings that the source compares `name` with; if none, all that it compares anything with."""
    compared = _all_compared(getattr(source_of, "__func__", source_of))
    own = [text for names, text in compared if name in names]
    return list(dict.fromkeys(own or [text for _, text in compared]))


@functools.cache
def _all_compared(source_of: Any) -> list[tuple[set[str], str]]:
    try:
        return list(_compared(ast.parse(textwrap.dedent(inspect.getsource(source_of)))))
    except (OSError, TypeError, SyntaxError):
        return []


def _compared(tree: ast.AST) -> Iterator[tuple[set[str], str]]:
    """Pairs of the names in an expression and a string that it is compared with or looked up by."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides: list[ast.AST] = [node.left, *node.comparators]
            yield from _pairs(sides, sides)
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Dict):
            yield from _pairs([node.slice], [key for key in node.value.keys if key])
        elif isinstance(node, ast.Dict):
            yield from _pairs([], [key for key in node.keys if key])
        elif isinstance(node, ast.Match):
            patterns = [case.pattern for case in node.cases]
            yield from _pairs([node.subject], list(patterns))


def _pairs(named: Iterable[ast.AST], texts: Iterable[ast.AST]) -> Iterator[tuple[set[str], str]]:
    names = {name for part in named for name in _names(part)}
    for part in texts:
        for node in ast.walk(part):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield names, node.value


def _names(part: ast.AST) -> Iterator[str]:
    for node in ast.walk(part):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
