"""The header flattener: the templates of a plan and what they include, as one text.

Includes are resolved once each, and of the scalar library only the functions that are called stay,
so that the emitted file holds what it uses and nothing else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import resources

INCLUDE = re.compile(r'^#include "([^"]+)"\n', re.MULTILINE)
LIBRARY = "scalar.cuh"
DEFINES = re.compile(
    r"(?:struct|constexpr \w+) (\w+)|^(?:template.*\n)?KW_FN [\w:<>]+&? (\w+)\(", re.M
)


def header(name: str) -> str:
    return (resources.files("kernelwright") / "kernels" / name).read_text()


def flatten(names: list[str], programs: str) -> str:
    """Each header once, in the order in which it is needed by `programs`."""
    seen: set[str] = set()
    parts = [_inline(name, seen).strip() for name in names]
    rest = "\n\n".join(p for p in parts if p)
    if LIBRARY not in seen:
        return rest
    return prune(_body(LIBRARY), rest + programs).strip() + "\n\n" + rest


def _inline(name: str, seen: set[str]) -> str:
    if name in seen:
        return ""
    seen.add(name)
    if name == LIBRARY:
        return ""
    return INCLUDE.sub(lambda m: _inline(m.group(1), seen), _body(name))


def _body(name: str) -> str:
    return header(name).replace("#pragma once\n\n", "").replace("#pragma once\n", "")


@dataclass
class Item:
    """A definition with the comment above it, or text that always stays (`names` is None)."""

    text: str
    names: set[str] | None


def prune(text: str, users: str) -> str:
    """Drop the definitions that neither `users` nor a kept definition mentions."""
    items = _items(text)
    defined: dict[str, list[int]] = {}
    for i, item in enumerate(items):
        for n in item.names or ():
            defined.setdefault(n, []).append(i)
    kept = {i for i, item in enumerate(items) if item.names is None}
    words = _words(users) | {w for i in kept for w in _words(items[i].text)}
    while words:
        found = {i for w in words & defined.keys() for i in defined[w]} - kept
        kept |= found
        words = {w for i in found for w in _words(items[i].text)}
    return re.sub(r"\n{3,}", "\n\n", "\n".join(items[i].text for i in sorted(kept)))


def _items(text: str) -> list[Item]:
    """Split a header at the level of its namespaces."""
    items: list[Item] = []
    current: list[str] = []
    depth = 0

    def close() -> None:
        body = "\n".join(current)
        match = DEFINES.search(_uncommented(body))
        if match:
            items.append(Item(body + "\n", {g for g in match.groups() if g}))
        elif not all(line.startswith("//") for line in current) or not items:
            items.append(Item(body, None))
        current.clear()

    for line in text.splitlines():
        if line.startswith("// clang-format"):
            continue
        if depth == 0 and (line.startswith(("namespace", "}", "#")) or not line):
            if current and current[-1].startswith("//") and line.startswith(("namespace", "#")):
                close()
            if current:
                close()
            items.append(Item(line, None))
            continue
        current.append(line)
        depth += line.count("{") - line.count("}")
        if depth == 0 and line.rstrip().endswith(("}", ";", "};")):
            close()
    if current:
        close()
    return items


def _uncommented(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("//"))


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", re.sub(r"//.*", "", text)))
