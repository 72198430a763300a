"""Python that an emitted file carries: what it uses of texts with more, and nothing else.

In: a text of definitions, or the modules of runtime/ together, and the names that the rest of the
file uses. Out: the definitions that these names reach, with the comments above them, behind the
imports that they need. A statement that defines nothing stays.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kernelwright.emit.scopes import bound, used

PACKAGE = Path(__file__).parents[1]
SHARED = (
    *("runtime/fusion", "runtime/tensors", "runtime/memo", "runtime/baked"),
    *("runtime/recorded", "runtime/training", "runtime/autograd", "runtime/traced"),
)
FILES = {
    "cpu": (*SHARED, "runtime/launches", "runtime/orders", "runtime/pixels", "runtime/build"),
    "cuda": (
        *(*SHARED, "runtime/device", "runtime/products", "runtime/frozen", "runtime/precision"),
        *("runtime/dropout", "runtime/orders", "runtime/pixels", "runtime/nvcc", "runtime/build"),
    ),
}
HOMES = ("kernelwright.runtime",)


@dataclass(frozen=True)
class Piece:
    """A statement of a module with the comment above it; one without names defines nothing.

    An import has no uses, and `title` is the docstring of the module that the piece is from.
    """

    text: str
    names: frozenset[str]
    uses: frozenset[str]
    gap: int
    title: str = ""
    is_import: bool = False


def library(roots: Set[str], device: str) -> str:
    """What these names need of runtime/, as one module."""
    return printed(reached(runtime_pieces(device), roots))


@cache
def names(device: str) -> frozenset[str]:
    """Every name that the modules of runtime/ define."""
    return frozenset(n for p in runtime_pieces(device) if not p.is_import for n in p.names)


@cache
def runtime_pieces(device: str) -> tuple[Piece, ...]:
    found: list[Piece] = []
    for place in FILES[device]:
        text = (PACKAGE / f"{place}.py").read_text()
        found += pieces(text, HOMES)
    return tuple(found)


def pieces(text: str, homes: Sequence[str] = ()) -> list[Piece]:
    """The statements of a module; what it imports from `homes` is left out."""
    lines, tree = text.splitlines(), ast.parse(text)
    title = ast.get_docstring(tree) or ""
    body = tree.body[1:] if title else tree.body
    last = tree.body[0].end_lineno or 0 if title else 0
    found = []
    for node in body:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))]) - 1
        above = first
        while above > last and lines[above - 1].startswith("#"):
            above -= 1
        gap = next((i for i in range(above - last) if lines[above - 1 - i].strip()), above - last)
        code = "\n".join(lines[above : node.end_lineno])
        last = node.end_lineno or 0
        if isinstance(node, ast.Import | ast.ImportFrom):
            if not _is_from(node, homes):
                found += [_import(node, alias) for alias in node.names]
        else:
            own = bound(code) if isinstance(node, DEFINING) else ()
            found.append(Piece(code, frozenset(own), frozenset(used(code)), gap, title))
    return found


def _is_from(node: ast.stmt, homes: Sequence[str]) -> bool:
    inside = isinstance(node, ast.ImportFrom) and f"{node.module}."
    return any(inside and inside.startswith(f"{home}.") for home in homes)


DEFINING = (ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)


def _import(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> Piece:
    """An import of one name."""
    if isinstance(node, ast.Import):
        one: ast.stmt = ast.Import([alias])
        name = alias.asname or alias.name.partition(".")[0]
    else:
        one, name = ast.ImportFrom(node.module, [alias], node.level), alias.asname or alias.name
    return Piece(ast.unparse(one), frozenset({name}), frozenset(), 0, is_import=True)


def reached(every: Sequence[Piece], roots: Iterable[str]) -> list[Piece]:
    """The pieces that these names need, in order."""
    wanted = set(roots)
    kept: set[int] = set()
    while True:
        found = {i for i, p in enumerate(every) if not p.names or p.names & wanted} - kept
        if not found:
            return [p for i, p in enumerate(every) if i in kept]
        kept |= found
        wanted |= {name for i in found for name in every[i].uses}


def printed(found: Sequence[Piece]) -> str:
    """Imports first, plain ones before names out of modules; then the code under its titles."""
    lines = dict.fromkeys(p.text for p in found if p.is_import)
    plain = sorted(x for x in lines if x.startswith("import ") and "torch" not in x)
    torch = sorted(x for x in lines if x.startswith("import ") and "torch" in x)
    named = sorted(x for x in lines if x.startswith("from "))
    text = "\n".join([*plain, *([""] if plain and (torch or named) else []), *torch, *named])
    before = ""
    for piece in (p for p in found if not p.is_import):
        if piece.title and piece.title != before:
            before = piece.title
            text += "\n\n\n" + "\n".join(f"# {line}".rstrip() for line in before.splitlines())
            text += "\n\n" + piece.text
        else:
            text += "\n" * (1 + piece.gap) + piece.text
    return text.strip("\n") + "\n"
