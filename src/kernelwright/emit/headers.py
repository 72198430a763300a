"""The C++ library of an emitted file: the headers of its programs, without what they do not use.

In: the headers that programs include, the programs, and the device. Out: one text, each header
once, behind what it includes. Of a header stay the definitions that the programs reach, and the
comments, namespaces and conditionals around them. The same headers and programs give the same text,
so that anybody who has the package can make it again and compare (library.py).

A definition is reached if its name is mentioned by the programs or by what is reached. An overload
or a specialisation for a type of the library is needed only where that type is reached as well: no
value of the type exists otherwise. What is not understood stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources

from kernelwright.emit import cxx
from kernelwright.emit.cxx import Conditional, Definition, Namespace, Note, Part, Word

SYSTEM = re.compile(r"^#include <[^>]+>$")
WIDTH = 100
# What the preprocessor knows for certain where a text for this device is compiled.
KNOWN: dict[str, dict[str, bool]] = {
    "cuda": {"__CUDACC__": True},
    "cpu": {"__CUDACC__": False, "__CUDA_ARCH__": False},
}


Mention = tuple[Word, tuple[str, ...] | None]  # and from which namespace


def header(name: str) -> str:
    return (resources.files("kernelwright") / "kernels" / name).read_text()


@dataclass(frozen=True, eq=False)
class Header:
    """One file of kernels/ as the device sees it."""

    name: str
    includes: tuple[str, ...]
    about: str
    parts: tuple[Part, ...]


def flatten(names: Sequence[str], programs: str, device: str) -> str:
    """What `programs` need of these headers, as one text to stand in front of them.

    Units that are compiled apart can share the text for all of their programs together, or have
    each its own.
    """
    headers = _in_order(names, device)
    kept = _reached(headers, programs)
    found = [h for h in headers if any(_stays(p, kept) for p in h.parts)]
    system = dict.fromkeys(i for h in found for i in h.includes if SYSTEM.match(i))
    texts = ["\n".join(sorted(system)), *(_printed(h, kept) for h in found)]
    return "\n\n".join(t for t in texts if t) + "\n"


@cache
def read(name: str, device: str) -> Header:
    """A header, read for a device."""
    text = header(name)
    includes = tuple(re.findall(r'^#include ["<][^">]+[">]$', text, re.MULTILINE))
    text = re.sub(r"^(#include .*|#pragma once|// clang-format (on|off))\n", "", text, flags=re.M)
    parts = cxx.read(cxx.resolved(text, KNOWN[device]))
    first = parts[0] if parts else None
    if isinstance(first, Note):
        return Header(name, includes, first.text, tuple(parts[1:]))
    return Header(name, includes, "", tuple(parts))


def _in_order(names: Sequence[str], device: str) -> list[Header]:
    """The headers and all that they include, each behind its own includes."""
    found: dict[str, Header] = {}

    def visit(name: str) -> None:
        if name not in found:
            one = read(name, device)
            for include in one.includes:
                if not SYSTEM.match(include):
                    visit(include.split('"')[1])
            found[name] = one

    for name in names:
        visit(name)
    return list(found.values())


# ---- what is reached ------------------------------------------------------------------------


def _reached(headers: Sequence[Header], programs: str) -> set[Definition]:
    index = _index(tuple(headers))
    guards, homes = index.guards, index.homes
    kept: set[Definition] = set()
    mentioned: set[Mention] = {(word, ()) for word in cxx.mentioned(programs)}
    found = {d for d in guards if d.kind == "exported"} | index.wanted(mentioned)
    while found:
        kept |= found
        for definition in found:
            words = definition.words | guards[definition]
            mentioned |= {(word, _home(definition)) for word in words}
        live = {homes[d] for d in kept}
        found = index.wanted(mentioned) - kept
        found |= {d for d in guards if d.name is None and homes[d] in live} - kept
    return kept


class _Index:
    """All definitions by name, and which of them a set of words asks for."""

    def __init__(self, headers: Sequence[Header]) -> None:
        guarded = [(d, text, h) for h in headers for d, text in cxx.definitions(list(h.parts))]
        self.guards = {d: cxx.mentioned(text) for d, text, _ in guarded}
        self.homes = {d: h for d, _, h in guarded}
        definitions = list(self.guards)
        self.by_name: dict[str, list[Definition]] = {}
        macros = {d.name: d for d in definitions if d.kind == "macro" and d.name}
        for definition in definitions:
            for name in _provided(definition, macros):
                self.by_name.setdefault(name, []).append(definition)
        self.namespaces = {n for d in definitions for n in d.namespace}
        self.types = {d.name for d in definitions if d.kind == "type" and d.name}

    def wanted(self, mentions: Iterable[Mention]) -> set[Definition]:
        named = {word.name for word, _ in mentions}
        typed = {d.namespace for name in named & self.types for d in self.by_name[name]}
        found: set[Definition] = set()
        for word, home in mentions:
            same = self.by_name.get(word.name, ())
            matching = [d for d in same if self._may_mean(word, d)]
            if word.owner is None and home is not None:
                # From outside of a namespace its functions are found by the types of arguments.
                matching = [d for d in matching if _around(d, home) or d.namespace in typed]
            found |= {d for d in matching if len(same) == 1 or self._shaped(d, named)}
        return found

    def _may_mean(self, word: Word, definition: Definition) -> bool:
        if word.is_scope and definition.kind in ("function", "variable"):
            return False
        if word.owner is None or definition.kind in ("macro", "invocation"):
            return True
        if word.owner == "":
            return not definition.namespace
        if word.owner not in self.namespaces:
            return False  # a member of a type
        return word.owner in definition.namespace[-1:]

    def _shaped(self, definition: Definition, named: set[str]) -> bool:
        """Whether the library's types among its parameters occur at all."""
        return definition.shape & self.types <= named


@lru_cache(maxsize=32)
def _index(headers: tuple[Header, ...]) -> _Index:
    """One for all programs that these headers stand in front of."""
    return _Index(headers)


def _home(definition: Definition) -> tuple[str, ...] | None:
    """The namespace that its words are looked up from; a macro may be used in any."""
    return definition.namespace if definition.kind != "macro" else None


def _around(definition: Definition, home: tuple[str, ...]) -> bool:
    return definition.namespace == home[: len(definition.namespace)]


def _provided(definition: Definition, macros: Mapping[str, Definition]) -> set[str]:
    """The names under which a definition is found; a macro's use stands for what it defines."""
    if definition.kind != "invocation":
        return {definition.name} if definition.name else set()
    found: set[str] = set()
    names, seen = [definition.name], set()
    while names:
        macro = macros.get(names.pop() or "")
        if macro is not None and macro not in seen:
            seen.add(macro)
            found |= set(re.findall(r"\b(?:struct|class)\s+(\w+)", macro.text))
            names += [word.name for word in macro.words]
    return found


# ---- the text -------------------------------------------------------------------------------


def _printed(one: Header, kept: set[Definition]) -> str:
    title = f"// ---- {one.name} "
    lines = [title + "-" * (WIDTH - len(title)), *([one.about] if one.about else []), ""]
    return "\n".join([*lines, *_lines(one.parts, kept)]).rstrip("\n")


def _stays(part: Part, kept: set[Definition]) -> bool:
    if isinstance(part, Definition):
        return part in kept
    if isinstance(part, Namespace):
        return any(_stays(p, kept) for p in part.inside)
    if isinstance(part, Conditional):
        return any(_stays(p, kept) for _, inside in part.branches for p in inside)
    return False


def _lines(parts: Sequence[Part], kept: set[Definition]) -> list[str]:
    """The parts that stay, with an empty line wherever one stood between them."""
    lines: list[str] = []
    gap = False
    for i, part in enumerate(parts):
        gap |= isinstance(part, Namespace) or part.gap
        if isinstance(part, Note):
            following = _section(parts[i + 1 :])
            if not any(_stays(p, kept) for p in following):
                continue
        elif not _stays(part, kept):
            continue
        lines += ["", *_text(part, kept)] if gap and lines else _text(part, kept)
        gap = False
    return lines


def _section(parts: Sequence[Part]) -> Sequence[Part]:
    """What a comment that stands alone is the title of: everything to the next such comment."""
    ends = [i for i, part in enumerate(parts) if isinstance(part, Note)]
    return parts[: ends[0]] if ends else parts


def _text(part: Part, kept: set[Definition]) -> list[str]:
    if isinstance(part, Definition | Note):
        return part.text.splitlines()
    if isinstance(part, Namespace):
        return [part.opening, "", *_lines(part.inside, kept), "", part.closing]
    lines = []
    for directive, guarded in part.branches:
        lines += [directive, *_lines(guarded, kept)]
    return [*lines, part.closing]
