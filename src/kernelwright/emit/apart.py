"""The user's names and the generated ones live in one module, and must not meet.

In: the user's text and the generated text that will stand behind it. Out: the same two, with names
of the generated text changed where they would take the place of one of the user's, or the other way
round. An import of the very same thing is no clash. Only ModelNew is ours by right: if the user
has one, that is renamed.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Set

from kernelwright.emit.edits import Source
from kernelwright.emit.scopes import bound, imports, otherwise_bound, renamed, used

OURS = "ModelNew"


def keep_apart(user: str, generated: str, hides: Set[str] = frozenset()) -> tuple[str, str]:
    """Both texts, in one namespace, mean what they meant alone; `Model` is still the user's.

    `hides` are names that forward's own parameters would hide from it.
    """
    mine = bound(generated)
    taken = bound(user) | used(user) | mine | used(generated) | set(dir(builtins))
    if OURS in bound(user):
        user = renamed(user, {OURS: free(f"_user_{OURS}", taken)})
    theirs = bound(user) | used(user) | hides
    clashes = {n for n in mine & theirs if n != OURS and not _same_import(n, user, generated)}
    hidden = _hidden_builtins(user, generated) - mine
    names = {name: free(f"_kw_{name.lstrip('_')}", taken) for name in sorted(clashes | hidden)}
    generated = renamed(generated, names)
    if hidden:
        listed = ", ".join(f"{name} as {names[name]}" for name in sorted(hidden))
        generated = _before_all(generated, f"from builtins import {listed}\n")
    return user, generated


def free(wish: str, taken: set[str]) -> str:
    """The wished name, or the next one that nobody has; it is taken from now on."""
    name, number = wish, 1
    while name in taken:
        number += 1
        name = f"{wish}_{number}"
    taken.add(name)
    return name


def _same_import(name: str, user: str, generated: str) -> bool:
    ours, theirs = imports(generated).get(name, set()), imports(user).get(name, set())
    others = otherwise_bound(user) | otherwise_bound(generated)
    return name not in others and len(ours | theirs) == 1 and bool(ours and theirs)


def _hidden_builtins(user: str, generated: str) -> set[str]:
    """Builtins of which the user's module has another: `from torch import *` alone has `max`.

    `super` cannot be renamed: the compiler knows it by its name.
    """
    known = {n for n in dir(builtins) if not n.startswith("_")} - {"super"}
    star = any("*" in (a.name for a in n.names) for n in ast.walk(ast.parse(user))
               if isinstance(n, ast.ImportFrom))  # fmt: skip
    return used(generated) & known & (known if star else bound(user))


def _before_all(text: str, line: str) -> str:
    """The line before the first statement, behind the comments that lead the text."""
    source = Source(text)
    first = source.starts[source.tree.body[0].lineno - 1]
    return text[:first] + line + text[first:]
