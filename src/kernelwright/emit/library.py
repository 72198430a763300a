"""The sections of an emitted file, and the proof that its library is the package's own.

An emitted file is a row of sections under banners. What comes from the package stands last, in
Python and in C++, each under a banner with the version and the hash of exactly the text below.
Which definitions these sections hold follows from the rest of the file, so anybody who has that
version of the package can write them again and compare: `kernelwright check`.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from kernelwright.emit import paste
from kernelwright.emit.apart import new_names, own_names, prefixed
from kernelwright.emit.headers import flatten
from kernelwright.emit.scopes import bound, imports, renamed, used
from kernelwright.version import __version__

RULE = "# " + "-" * 98
FUSED, PROGRAMS = "The fused model", "The generated programs"
PYTHON, CXX = "Python", "C++"
HELD = {PYTHON: "runtime", CXX: "kernels"}
IDENTICAL = "Identical to the package; `kernelwright check` on this file proves it."
UNSEALED = "sha256 of the text below"
SECTION = re.compile(rf"^{RULE}\n((?:# .*\n)+){RULE}\n", re.MULTILINE)
SEAL = re.compile(
    rf"# \d\. The library, in (?P<language>Python|C\+\+): what this file uses of "
    r"(?P<folder>runtime|kernels)/ of kernelwright (?P<version>\S+)\n"
    rf"# for (?P<device>\w+)\. {IDENTICAL}\n"
    rf"# (?P<seal>{UNSEALED}|sha256 [0-9a-f]{{64}})\n"
)
HEADER = re.compile(r"^// ---- ([\w.]+\.(?:cuh|hpp)) -+$", re.MULTILINE)


def section(number: int, title: str, *lines: str) -> str:
    """A banner."""
    return "\n".join([RULE, f"# {number}. {title}", *(f"# {line}" for line in lines), RULE])


def library_section(number: int, language: str, device: str) -> str:
    """The banner of a part that is the package's; `sealed` writes the hash."""
    return section(
        number,
        f"The library, in {language}: what this file uses of {HELD[language]}/ of "
        f"kernelwright {__version__}",
        f"for {device}. {IDENTICAL}",
        UNSEALED,
    )


@dataclass(frozen=True)
class Section:
    """A banner's lines, and the text below it up to the next banner."""

    banner: str
    text: str

    @property
    def seal(self) -> re.Match[str] | None:
        return SEAL.fullmatch(self.banner)

    @property
    def digest(self) -> str:
        return "sha256 " + hashlib.sha256(self.text.encode()).hexdigest()


def sections(source: str) -> Iterator[Section]:
    """From the fused model on: the original above it may be an emitted file itself."""
    found = list(SECTION.finditer(source))
    models = [i for i, match in enumerate(found) if FUSED in match.group(1)]
    found = found[models[-1] :] if models else []
    ends = [*(m.start() for m in found[1:]), len(source)]
    for match, end in zip(found, ends, strict=False):
        yield Section(match.group(1), source[match.end() : end].strip("\n") + "\n")


def sealed(source: str) -> str:
    """The file with the hash of each part of the library in its banner."""
    for part in sections(source):
        if part.seal is not None and part.seal["seal"] == UNSEALED:
            banner = part.banner.replace(UNSEALED, part.digest)
            source = source.replace(part.banner, banner, 1)
    return source


# ---- the same text once more, from the package ------------------------------------------------


def written_again(part: Section, source: str) -> str:
    """What the package would put below this banner, given the rest of the file."""
    assert part.seal is not None
    if part.seal["language"] == PYTHON:
        return _python(part, source)
    return _cxx(part, source)


def _python(part: Section, source: str) -> str:
    """The modules of runtime/, pruned to the names that the file uses, under their names in it."""
    assert part.seal is not None
    device = part.seal["device"]
    names = paste.names(device)
    prefix = _prefix(part)
    new = new_names(names, prefix, first=names)
    others = used(source.replace(part.text, ""))
    text = paste.library({name for name in names if new[name] in others}, device)
    aliases = _aliases(source, prefix)
    return renamed(text, {n: new[n] for n in own_names(text)} | _only(aliases, text))


def _prefix(part: Section) -> str:
    found = re.search(r"^(?:def|class) (_kw\d*)_", part.text, re.MULTILINE)
    return found.group(1) if found else "_kw"


def _aliases(source: str, prefix: str) -> dict[str, str]:
    """Modules and builtins that have another name here, since the user has one of theirs."""
    found: dict[str, str] = {}
    for name, origins in imports(source).items():
        for origin in origins:
            if prefixed(origin[-1], prefix) == name:
                found[origin[-1]] = name
    return found


def _only(names: dict[str, str], text: str) -> dict[str, str]:
    here = bound(text) | used(text)
    return {old: new for old, new in names.items() if old in here}


def _cxx(part: Section, source: str) -> str:
    """The headers, pruned to what the programs of the file use."""
    assert part.seal is not None
    name = part.text.split(" = ", 1)[0]
    text = flatten(HEADER.findall(part.text), programs(source), part.seal["device"])
    return literal(name, text)


def programs(source: str) -> str:
    """The generated C++ of a file, all of it."""
    return _strings(source, PROGRAMS)


def headers(source: str) -> str:
    """The C++ of the library in a file."""
    return _strings(source, f"The library, in {CXX}")


def has_programs(source: str) -> bool:
    return any(PROGRAMS in s.banner for s in sections(source))


def fused_model(source: str) -> str:
    """The Python of a file that was written for its model alone."""
    return next(s.text for s in sections(source) if FUSED in s.banner)


def _strings(source: str, title: str) -> str:
    texts = [s.text for s in sections(source) if title in s.banner]
    nodes = (node for text in texts for node in ast.walk(ast.parse(text)))
    values = (node.value for node in nodes if isinstance(node, ast.Constant))
    return "\n".join(value.strip("\n") for value in values if isinstance(value, str)) + "\n"


def literal(name: str, text: str) -> str:
    """C++ as Python: a raw string under a name."""
    return f'{name} = r"""\n{text}"""\n'
