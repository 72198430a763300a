"""The user's names and the generated ones live in one module, and must not meet.

Every name that the generated text binds begins with a prefix that no name of the user's begins
with: `_kw_`, and `_KW_` for constants. Two are exceptions. ModelNew is ours by right: if the user
has one, that is renamed. What the generated text imports keeps its name, `torch`, unless the user
has something else of this name; the same holds for Python's builtins.
"""

from __future__ import annotations

import ast
import builtins
import itertools
from collections.abc import Iterable, Sequence, Set

from kernelwright.emit.edits import Source
from kernelwright.emit.scopes import bound, imports, otherwise_bound, renamed, used

OURS = "ModelNew"


def prefix_for(user: str, others: Iterable[str] = ()) -> str:
    """`_kw`, or `_kw2` and so on: an emitted file may be compiled again."""
    theirs = {name.lower() for name in (*bound(user), *used(user), *others)}
    wishes = (f"_kw{number}" if number > 1 else "_kw" for number in itertools.count(1))
    return next(p for p in wishes if not any(name.startswith(f"{p}_") for name in theirs))


def prefixed(name: str, prefix: str) -> str:
    stem = name.lstrip("_")
    return f"{prefix.upper() if stem.isupper() else prefix}_{stem}"


def own_names(text: str) -> frozenset[str]:
    """The names of a generated text that are given the prefix."""
    return otherwise_bound(text) & bound(text) - {OURS}


def new_names(names: Iterable[str], prefix: str, first: Set[str] = frozenset()) -> dict[str, str]:
    """Each name with its prefix; the `first` ones are given theirs whatever the others are."""
    taken: set[str] = set()
    order = sorted(names, key=lambda n: (n not in first, n.startswith("_"), n))
    return {name: free(prefixed(name, prefix), taken) for name in order}


def keep_apart(
    user: str, generated: Sequence[str], prefix: str, first: Set[str] = frozenset()
) -> tuple[str, list[str]]:
    """All texts, in one namespace, mean what they meant before; `Model` is still the user's.

    The generated text comes in parts, most of which are the same in many files: what a part binds
    and uses is looked up once.
    """
    if OURS in bound(user):
        taken = {*bound(user), *used(user), *dir(builtins)}
        user = renamed(user, {OURS: free(f"_user_{OURS}", taken)})
    theirs = bound(user) | used(user)
    names = new_names(frozenset().union(*map(own_names, generated)), prefix, first)
    hidden = _hidden_builtins(user, generated) - names.keys()
    imported = {name for part in generated for name in imports(part)}
    clashes = (imported & theirs) - _imported_alike(user, generated)
    names |= {name: prefixed(name, prefix) for name in (clashes | hidden) - names.keys()}
    parts = [renamed(part, names) for part in generated]
    if hidden:
        listed = ", ".join(f"{name} as {names[name]}" for name in sorted(hidden))
        place, part = next((i, p) for i, p in enumerate(parts) if Source(p).tree.body)
        parts[place] = _before_all(part, f"from builtins import {listed}\n")
    return user, parts


def free(wish: str, taken: set[str]) -> str:
    """The wished name, or the next one that nobody has; it is taken from now on."""
    name, number = wish, 1
    while name in taken:
        number += 1
        name = f"{wish}_{number}"
    taken.add(name)
    return name


def _imported_alike(user: str, generated: Iterable[str]) -> set[str]:
    """Names that the texts import, all from one place, and bind by nothing else."""
    theirs, *ours = (imports(text) for text in (user, *generated))
    both = theirs.keys() & {name for part in ours for name in part}
    alike = {n for n in both if len(theirs[n].union(*(part.get(n, ()) for part in ours))) == 1}
    return alike.difference(*map(otherwise_bound, (user, *generated)))


def _hidden_builtins(user: str, generated: Iterable[str]) -> frozenset[str]:
    """Builtins of which the user's module has another: `from torch import *` alone has `max`.

    `super` cannot be renamed: the compiler knows it by its name.
    """
    known = {n for n in dir(builtins) if not n.startswith("_")} - {"super"}
    star = any("*" in (a.name for a in n.names) for n in ast.walk(ast.parse(user))
               if isinstance(n, ast.ImportFrom))  # fmt: skip
    looked_up = frozenset().union(*map(used, generated))
    return looked_up & known & (known if star else bound(user))


def _before_all(text: str, line: str) -> str:
    """The line before the first statement, behind the comments that lead the text."""
    source = Source(text)
    first = source.starts[source.tree.body[0].lineno - 1]
    return text[:first] + line + text[first:]
