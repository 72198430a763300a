"""Where a live function or class was written: the text of its definition, from a file or a cell.

In: a function or a class. Out: a Snippet, or None where no source can be read. Functions know the
file and line of their code; classes do not, so a class is found through one of its methods, which
works in scripts, notebooks and wherever else linecache has the text. What is found is compiled and
compared with the live code, so that a file which changed meanwhile is not taken for what runs.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import os
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kernelwright.emit import scopes
from kernelwright.emit.edits import Source

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda


@dataclass(frozen=True)
class Snippet:
    """A definition as text of its own, and whether its file kept annotations unevaluated."""

    text: str
    is_lambda: bool
    future: bool


def functions_of(kind: type) -> Iterator[types.FunctionType]:
    """The functions that a class defines, those inside of properties and the like included."""
    for value in vars(kind).values():
        parts = [value.fget, value.fset, value.fdel] if isinstance(value, property) else [value]
        for part in parts:
            function = plain(getattr(part, "__func__", part))
            if isinstance(function, types.FunctionType) and _is_own(function, kind):
                yield function
        if isinstance(value, type) and _is_own(value, kind):
            yield from functions_of(value)


def _is_own(value: Any, kind: type) -> bool:
    same_module = value.__module__ == kind.__module__
    return same_module and str(value.__qualname__).startswith(f"{kind.__qualname__}.")


def plain(value: Any) -> Any:
    """The function inside of what decorators with functools.wraps made of it."""
    try:
        return inspect.unwrap(value)
    except ValueError:
        return value


def snippet_of(value: Any) -> Snippet | None:
    """The definition of a function or a class."""
    found = _class(value) if isinstance(value, type) else _function(plain(value))
    if found is None:
        return None
    source, node = found
    future = any(
        isinstance(n, ast.ImportFrom) and n.module == "__future__"
        and any(a.name == "annotations" for a in n.names)
        for n in source.tree.body
    )  # fmt: skip
    if isinstance(node, ast.Lambda):
        return Snippet(source.segment(node), True, future)
    return Snippet(_dedented(source, node), False, future)


def _source(file: str, names: dict[str, Any] | None) -> Source | None:
    lines = linecache.getlines(file, names)
    return _parsed("".join(lines)) if lines else None


@functools.lru_cache(maxsize=16)
def _parsed(text: str) -> Source | None:
    try:
        return Source(text)
    except SyntaxError:
        return None


def _function(value: Any) -> tuple[Source, Definition] | None:
    code = getattr(value, "__code__", None)
    if not isinstance(code, types.CodeType):
        return None
    source = _source(code.co_filename, value.__globals__)
    if source is None:
        return None
    same = [n for n in ast.walk(source.tree) if _begins(n, code)]
    if isinstance(next(iter(same), None), ast.Lambda) and len(same) > 1:
        same = [n for n in same if _same_code(_compiled_lambda(source, n), code)]
    elif not any(_same_code(own, code) for own in _codes(source.text, code.co_filename)):
        return None
    return (source, same[0]) if same else None  # type: ignore[return-value]


def _begins(node: ast.AST, code: types.CodeType) -> bool:
    if isinstance(node, ast.Lambda):
        return code.co_name == "<lambda>" and node.lineno == code.co_firstlineno
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == code.co_name:
        return first_line(node) == code.co_firstlineno
    return False


def first_line(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> int:
    return min([node.lineno, *(d.lineno for d in node.decorator_list)])


def _same_code(own: types.CodeType | None, code: types.CodeType) -> bool:
    """The same instructions, or more of them around the same names: tests and tracers add some."""
    if own is None or own.co_name != code.co_name or own.co_argcount != code.co_argcount:
        return False
    constants = [c for c in own.co_consts if not isinstance(c, types.CodeType)]
    if own.co_code == code.co_code:
        return own.co_names == code.co_names and all(c in code.co_consts for c in constants)
    return set(own.co_names) < set(code.co_names) and all(c in code.co_consts for c in constants)


@functools.lru_cache(maxsize=16)
def _codes(text: str, file: str) -> tuple[types.CodeType, ...]:
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT  # as in a notebook
    return tuple(_all_codes(compile(text, file, "exec", flags, dont_inherit=True)))


def _all_codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _all_codes(constant)


def _compiled_lambda(source: Source, node: Any) -> types.CodeType | None:
    text = f"({source.segment(node)})"
    return next((c for c in _codes(text, "lambda") if c.co_name == "<lambda>"), None)


def _class(kind: type) -> tuple[Source, Definition] | None:
    for function in functions_of(kind):
        found = _function(function)
        if found is not None:
            line = function.__code__.co_firstlineno
            around = [n for n in _classes(found[0], kind) if first_line(n) <= line <= _end(n)]
            if around:
                return found[0], around[-1]
        elif linecache.getlines(function.__code__.co_filename):
            return None  # the text is not that of the live class
    return _class_by_name(kind)


def _class_by_name(kind: type) -> tuple[Source, Definition] | None:
    """A class without functions of its own: in the file of its module, or in the last such cell."""
    module = sys.modules.get(kind.__module__)
    cells = [name for name in reversed(list(linecache.cache)) if not os.path.exists(name)]
    for name in [getattr(module, "__file__", None), *cells]:
        lines = linecache.getlines(name, vars(module) if module else None) if name else []
        if any(f"class {kind.__name__}" in line for line in lines):
            source = _parsed("".join(lines))
            found = [n for n in _classes(source, kind) if _may_be(n, kind)] if source else []
            if source and found:
                return source, found[-1]
    return None


def _may_be(node: ast.ClassDef, kind: type) -> bool:
    """Whether a class of that name has the same fields, and no method that could be compared."""
    fields = [n.target for n in node.body if isinstance(n, ast.AnnAssign)]
    names = [target.id for target in fields if isinstance(target, ast.Name)]
    methods = [n for n in node.body if isinstance(n, ast.FunctionDef) and not n.decorator_list]
    other = [n for n in node.body if not isinstance(n, ast.AnnAssign)]
    bound = scopes.bound(ast.unparse(ast.Module(other, [])))
    return names == list(inspect.get_annotations(kind)) and bound <= set(vars(kind)) and not methods


def _end(node: ast.ClassDef) -> int:
    return node.end_lineno or node.lineno


def _classes(source: Source, kind: type) -> list[ast.ClassDef]:
    every = [n for n in ast.walk(source.tree) if isinstance(n, ast.ClassDef)]
    return [n for n in every if n.name == kind.__name__]


def _dedented(source: Source, node: Any) -> str:
    """The definition at the left margin; the lines inside of strings keep their blanks."""
    first, last = first_line(node), node.end_lineno
    inside: set[int] = set()
    for n in ast.walk(node):
        if isinstance(n, ast.JoinedStr) or (
            isinstance(n, ast.Constant) and isinstance(n.value, str)
        ):
            inside |= set(range(n.lineno + 1, (n.end_lineno or n.lineno) + 1))
    margin = " " * node.col_offset
    lines = source.lines[first - 1 : last]
    return "\n".join(
        line if number in inside else line.removeprefix(margin)
        for number, line in enumerate(lines, first)
    )
