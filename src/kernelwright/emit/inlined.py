"""Modules that stand beside a model file travel inside of the emitted one.

In: the text of a model file and its place. Out: the text with its imports of those modules changed
to names of their own, and behind its docstring their sources with a loader for them. They are
inlined, not found through sys.path: the file then works wherever it is moved, is reviewed as a
whole, and its `helpers` is not the `helpers` of another project in the same process. The names end
in a digest of all these sources, so equal files share their modules and others never meet. What is
installed stays an import.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kernelwright.emit.apart import free
from kernelwright.emit.edits import Edit, Source
from kernelwright.emit.scopes import bound, renamed, used
from kernelwright.emit.values import quoted
from kernelwright.loading import Place, is_installed, read_source

LOADER = '''
def {loader}(sources):
    """Make modules of the files that stood beside the model, so that this one suffices."""
    import importlib.abc
    import importlib.util
    import sys

    class Inlined(importlib.abc.InspectLoader, importlib.abc.MetaPathFinder):
        def find_spec(self, name, path=None, target=None):
            return importlib.util.spec_from_loader(name, self) if name in sources else None

        def is_package(self, name):
            return sources[name][0]

        def get_source(self, name):
            return sources[name][1]

        def get_code(self, name):
            return self.source_to_code(sources[name][1], name.replace(".", "/") + ".py")
{located}
    sys.meta_path.append(Inlined())
'''

LOCATED = """
        def exec_module(self, module):
            module.__file__ = {file}[: -len({name})] + sources[module.__name__][2]
            super().exec_module(module)
"""

FILE = '''
def {locate}(recorded):
    """The model's own path: where it was compiled from, or beside this file if that is gone."""
    import os

    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.path.basename(recorded))
    return recorded if os.path.exists(recorded) else here


{file} = {locate}({path})
'''


@dataclass(frozen=True)
class Neighbour:
    """A module beside the model, by its full name."""

    name: str
    text: str
    is_package: bool
    path: Path


def with_neighbours(text: str, place: Place) -> tuple[str, dict[str, str]]:
    """The text that stands alone, and how its neighbours are called in it."""
    neighbours = _Neighbours(place)
    neighbours.follow(text, place.package)
    found = neighbours.found
    parts = [text, *(f"{n.name}\n{n.text}" for n in found.values())]
    digest = hashlib.sha256("\0".join(parts).encode(errors="replace")).hexdigest()[:8]
    tops = {name.partition(".")[0] for name in found}
    names = {top: f"{top}_{digest}" for top in tops}
    changed = _redirected(text, place.package, names)
    return _with_prelude(changed, place, list(found.values()), names), names


class _Neighbours:
    """All modules that a text imports from its folder or package, and those that they import."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.top = place.package.partition(".")[0]
        self.found: dict[str, Neighbour] = {}

    def follow(self, text: str, package: str) -> None:
        for name in _imported(text, package):
            parts = name.split(".")
            for count in range(1, len(parts) + 1):
                if not self._take(".".join(parts[:count])):
                    break

    def _take(self, name: str) -> bool:
        if name in self.found:
            return True
        neighbour = self._locate(name)
        if neighbour is None:
            return False
        self.found[name] = neighbour
        package = name if neighbour.is_package else name.rpartition(".")[0]
        self.follow(neighbour.text, package)
        return True

    def _locate(self, name: str) -> Neighbour | None:
        top, *rest = name.split(".")
        folder = self.place.root if self.top and top == self.top else self.place.path.parent
        base = folder.joinpath(top, *rest)
        if is_installed(base) or not self._is_meant(top):
            return None
        for path, is_package in ((base / "__init__.py", True), (base.with_suffix(".py"), False)):
            if path.is_file():
                return Neighbour(name, read_source(path), is_package, path)
        if base.is_dir() and any(base.rglob("*.py")):
            return Neighbour(name, "", True, base)
        return None

    def _is_meant(self, top: str) -> bool:
        """What is installed, or built in, and was loaded before is what the import gives."""
        loaded = sys.modules.get(top)
        if loaded is None:
            return top not in sys.stdlib_module_names
        places = [getattr(loaded, "__file__", None), *getattr(loaded, "__path__", [])]
        return any(p and not is_installed(Path(p)) for p in places)


def _import_statements(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Those that can run; what stands under `if TYPE_CHECKING` never does."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for statement in node.orelse:
                yield from _import_statements(ast.Module([statement], []))
        else:
            yield from _import_statements(node)


def _imported(text: str, package: str) -> Iterator[str]:
    """Full names that may be modules, `from a import b` as a.b."""
    for node in _import_statements(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif (module := _absolute(node, package)) is not None:
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names if alias.name != "*")


def _absolute(node: ast.ImportFrom, package: str) -> str | None:
    if node.level == 0:
        return node.module
    parts = package.split(".") if package else []
    if node.level > len(parts):
        return None
    kept = parts[: len(parts) - node.level + 1]
    return ".".join([*kept, *([node.module] if node.module else [])])


def _redirected(text: str, package: str, names: dict[str, str]) -> str:
    """The text with imports of neighbours under their new names, relative ones made absolute."""
    source = Source(text)
    edits: list[Edit] = []
    for node in _import_statements(source.tree):
        if isinstance(node, ast.Import):
            edits += [_alias(source, alias, names) for alias in node.names]
        elif (module := _absolute(node, package)) is not None:
            top, dot, rest = module.partition(".")
            if top in names or node.level:
                edits.append(_from(source, node, names.get(top, top) + dot + rest))
    return source.replaced(edits)


def _alias(source: Source, alias: ast.alias, names: dict[str, str]) -> Edit:
    start, end = source.span(alias)
    top, dot, rest = alias.name.partition(".")
    if top not in names:
        return (start, end, source.text[start:end])
    new = names[top] + dot + rest
    if alias.asname:
        return (start, end, f"{new} as {alias.asname}")
    return (start, end, f"{new}, {names[top]} as {top}" if rest else f"{new} as {top}")


def _from(source: Source, node: ast.ImportFrom, module: str) -> Edit:
    start, _ = source.span(node)
    head = re.match(r"from[\s\\]*[.\w\s\\]*?[\s\\.]import\b", source.text[start:])
    assert head is not None
    return (start, start + head.end(), f"from {module} import")


def _with_prelude(text: str, place: Place, found: list[Neighbour], names: dict[str, str]) -> str:
    """The loader and the sources behind the docstring, and the model's own path if it is asked."""
    asked = "__file__" in used(text)
    located = any("__file__" in used(n.text) for n in found)
    taken = {*bound(text), *used(text)}
    file, locate, loader = (free(n, taken) for n in ("_MODEL_FILE", "_located", "_inline"))
    parts = []
    if asked or located:
        path = quoted(place.path.as_posix())
        parts.append(FILE.format(locate=locate, file=file, path=path))
    if found:
        where = LOCATED.format(file=file, name=quoted(place.path.name)) if located else ""
        parts.append(LOADER.format(loader=loader, located=where))
        parts.append(f"{loader}(\n    {{\n{_entries(place, found, names)}    }}\n)\n")
    if not parts:
        return text
    return _behind_docstring(renamed(text, {"__file__": file} if asked else {}), parts)


def _entries(place: Place, found: list[Neighbour], names: dict[str, str]) -> str:
    lines = []
    for n in found:
        top, dot, rest = n.name.partition(".")
        package = n.name if n.is_package else n.name.rpartition(".")[0]
        text = _redirected(n.text, package, names) if n.text else ""
        path = Path(*n.path.parts[len(place.path.parent.parts) :]).as_posix()
        if not n.path.is_relative_to(place.path.parent):
            up = len(place.path.parent.parts) - len(place.root.parts)
            path = "../" * up + n.path.relative_to(place.root).as_posix()
        entry = f"{n.is_package}, {_block(text)}, {quoted(path)}"
        lines.append(f"        {quoted(names[top] + dot + rest)}: ({entry}),\n")
    return "".join(lines)


def _block(text: str) -> str:
    """A literal of many lines that reads as it was written wherever that is possible."""
    for quote in ('"""', "'''"):
        if not any(c in text for c in (quote, "\r", "\0")):
            if text.endswith((quote[0], "\\")):
                continue
            return f"r{quote}{text}{quote}" if "\\" in text else f"{quote}{text}{quote}"
    return '"""' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\r", "\\r") + '"""'


def _behind_docstring(text: str, parts: list[str]) -> str:
    source = Source(text)
    body = source.tree.body
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    prelude = "\n\n".join(part.strip("\n") + "\n" for part in parts) + "\n\n"
    if not body:
        return text + "\n\n" + prelude
    first = min([body[0].lineno, *(d.lineno for d in getattr(body[0], "decorator_list", []))])
    at = source.starts[first - 1]
    return text[:at] + prelude + text[at:]
