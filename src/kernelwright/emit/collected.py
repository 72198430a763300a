"""A class that cannot be imported is written down, with everything that it needs.

In: classes that live in a script, a notebook, a function or a module loaded by hand. Out: text that
defines them: their own source, and that of the functions, base classes and decorators that they
use; imports of what can be imported; plain values of globals and of variables of functions around
them. The one idea: `name_of` binds a value under a name, and writing it down binds what it needs in
turn. What a definition needs while it runs comes before it, what its functions need comes behind.
"""

from __future__ import annotations

import ast
import builtins
import collections
import contextlib
import dataclasses
import enum
import functools
import sys
import textwrap
import types
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kernelwright.emit import scopes
from kernelwright.emit.annotations import quoted
from kernelwright.emit.apart import free
from kernelwright.emit.edits import Source
from kernelwright.emit.snippets import Snippet, functions_of, plain, snippet_of
from kernelwright.emit.values import classes, is_named_tuple, literal, parts, rebuild
from kernelwright.errors import UnsupportedError
from kernelwright.loading import is_installed

PUBLIC = ("builtins", "torch", "torch.nn.functional", "torch.nn", "torch.special", "torch.linalg",
          "torch.fft", "torch.nn.init", "math", "operator", "typing", "numpy")  # fmt: skip
LARGEST_TENSOR = 4096
ADVICE = "make it an attribute or a buffer of the module, or put the class into a file"


class Collector:
    """The text in the making: bindings by name, imports, and definitions in the order they run."""

    def __init__(self) -> None:
        self.bound: dict[str, Any] = {}
        self.taken: set[str] = set(dir(builtins)) | {"Model", "ModelNew"}
        self.imports: list[str] = []
        self.roots: dict[str, str] = {}
        self.body: list[str] = []
        self.left_out: dict[str, str] = {}
        self.unfinished: list[Any] = []
        self.around: list[dict[str, Any]] = []  # the globals of what needs the next definition
        self._lenient = False

    def text(self) -> str:
        ordered = sorted(self.imports, key=lambda line: (line.startswith("from"), line))
        head = "".join(f"{line}\n" for line in [*self._paths(), *ordered])
        tail = [_comment(f"{name} is missing here. {why}") for name, why in self.left_out.items()]
        parts: list[str] = []
        for text in [*self.body, *tail]:
            close = parts and all(_is_one_line(t) for t in (parts[-1], text))
            parts += ["\n" if close else "\n\n\n", text]
        return (head + "".join(parts)).strip("\n") + "\n"

    def _paths(self) -> Iterator[str]:
        """Where the user's own packages are, for a Python that is started elsewhere."""
        if self.roots:
            name = free("_sys", self.taken)
            yield f"import sys as {name}\n"
            for root, module in self.roots.items():
                yield f"if {root!r} not in {name}.path:"
                yield f"    {name}.path.append({root!r})  # where {module} is; looked at last\n"

    # ---- names --------------------------------------------------------------------------------

    def name_of(self, value: Any, wish: str) -> str:
        """The name under which the value is bound in the text, from now on at the latest."""
        if wish in self.bound and _same(self.bound[wish], value):
            return wish
        known = [name for name, other in self.bound.items() if other is value]
        if known and wish in self.taken:
            return known[0]
        name = free(wish, self.taken)
        self.bound[name] = value
        if known and literal(value) is None and not _is_imported(value):
            self.body.append(f"{name} = {known[0]}")
        else:
            self._bind(name, value)
        return name

    def try_name(self, kind: type) -> None:
        """Write a class down if that is possible."""
        with self._leniently():
            self._attempt(kind, kind.__name__)

    def _attempt(self, value: Any, wish: str) -> str:
        """The name of a value, or the wish itself if it may be, and has to be, left out."""
        marks = len(self.imports), len(self.body), len(self.unfinished)
        bound, around = dict(self.bound), self.around
        try:
            return self.name_of(value, wish)
        except UnsupportedError as error:
            if not self._lenient:
                raise
            del self.imports[marks[0] :], self.body[marks[1] :], self.unfinished[marks[2] :]
            self.bound, self.around = bound, around
            self.left_out[wish] = str(error)
            return wish

    def _bind(self, name: str, value: Any) -> None:
        if isinstance(value, types.ModuleType):
            self._import_module(name, value)
        elif (place := import_of(value)) is not None:
            self._import_from(name, *place)
        elif isinstance(value, type | types.FunctionType) or hasattr(value, "__wrapped__"):
            self._define(name, value)
        else:
            self.body.append(f"{name} = {self.expression(value, name)}")

    def _import_module(self, name: str, module: types.ModuleType) -> None:
        if not _is_importable(module):
            raise self._unwritable(name, module)
        self._remember_root(module)
        full = module.__name__
        self.imports.append(f"import {full}" if full == name else f"import {full} as {name}")

    def _import_from(self, name: str, module: types.ModuleType, path: str) -> None:
        self._remember_root(module)
        head, _, rest = path.partition(".")
        own = head if rest or head == name else f"{head} as {name}"
        line = f"from {module.__name__} import {own}"
        if line not in self.imports:
            self.imports.append(line)
            self.taken.add(head)
        if rest:
            self.body.append(f"{name} = {path}")

    def _import_inner(self, text: str, needs: _Needs) -> None:
        """`import a.b` binds a alone, but without it a has no b."""
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                found, module = needs.find(node.value.id)
                if not found or not isinstance(module, types.ModuleType) or module is torch:
                    continue
                inner = sys.modules.get(f"{module.__name__}.{node.attr}")
                if inner is not None and getattr(module, node.attr, None) is inner:
                    self.name_of(inner, f"_{module.__name__}_{node.attr}".replace(".", "_"))

    def _remember_root(self, module: types.ModuleType) -> None:
        root = _root(module)
        if root is not None and not is_installed(root):
            self.roots.setdefault(str(root), module.__name__.partition(".")[0])

    # ---- definitions --------------------------------------------------------------------------

    def _define(self, name: str, value: Any) -> None:
        snippet = snippet_of(value)
        if snippet is None:
            if isinstance(value, type) and is_named_tuple(value):
                self.body.append(f"{name} = {self._named_tuple(value)}")
                return
            raise UnsupportedError(
                f"The source of {_title(value)} cannot be read, or is not the one that runs; put "
                "it into a file and import it, or define it again."
            )
        self.unfinished.append(value)
        needs = _Needs(value, snippet, self.around)
        around, self.around = self.around, needs.spaces
        text = self._annotated(snippet, needs)
        module_level = f"{name} = {text}" if snippet.is_lambda else text
        own = name if snippet.is_lambda else plain(value).__name__
        at_once = scopes.used_at_once(module_level) - {own}
        renamed = {own: name} if own != name else {}
        renamed |= self._bring(sorted(at_once), needs)
        gone = [n for n in at_once if not needs.find(n)[0] and not hasattr(builtins, n)]
        if gone and not self._lenient:
            raise UnsupportedError(
                f"The definition of {_title(value)} uses {gone[0]}, a variable of a function "
                "around it that has ended; define it in the module."
            )
        place = len(self.body)
        self.body.append("")
        later = sorted(scopes.used(module_level) - at_once - {own})
        in_init = _only_in_init(module_level) if isinstance(value, type) else set()
        renamed |= self._bring([n for n in later if n not in in_init], needs)
        with self._leniently():
            renamed |= self._bring([n for n in later if n in in_init], needs)
        self._import_inner(module_level, needs)
        self.body[place] = scopes.renamed(module_level, renamed)
        if isinstance(value, type):
            self._patch(name, value, module_level, place)
        self.unfinished.remove(value)
        self.around = around

    @contextlib.contextmanager
    def _leniently(self) -> Iterator[None]:
        """A live module is never built again, so what only __init__ needs may be missing."""
        before, self._lenient = self._lenient, True
        try:
            yield
        finally:
            self._lenient = before

    def _bring(self, wanted: Sequence[str], needs: _Needs) -> dict[str, str]:
        """Bind the names that a definition uses; those that must be called otherwise."""
        changed: dict[str, str] = {}
        for wish in wanted:
            found, value = needs.find(wish)
            if found and (name := self._attempt(value, wish)) != wish:
                changed[wish] = name
        return changed

    def _annotated(self, snippet: Snippet, needs: _Needs) -> str:
        """The definition with annotations as text, where their names cannot simply be imported."""
        if snippet.is_lambda:
            return snippet.text
        source = Source(snippet.text)

        def importable(node: Any) -> bool:
            names = scopes.used(ast.unparse(node))
            found = [needs.find(n) for n in names if not hasattr(builtins, n)]
            return not snippet.future and all(
                ok and (isinstance(v, types.ModuleType) or import_of(v) is not None)
                for ok, v in found
            )

        return source.replaced(quoted(source, source.tree, keep=importable))

    def _patch(self, name: str, kind: type, text: str, place: int) -> None:
        """What was set on a class after its definition, or computed by it from what has changed."""
        (node,) = ast.parse(text).body
        written = {n: part for part in getattr(node, "body", []) for n in _binds(part)}
        for key, value in vars(kind).items():
            shown = None if key.startswith("_") else literal(value)
            if shown not in (None, _written_literal(written.get(key))):
                self.body[place] += f"\n\n\n{name}.{key} = {shown}"
            elif _is_replaced(kind, key, value, written.get(key), node):
                wish = value.__name__ if value.__name__.isidentifier() else key
                self.body.append(f"{name}.{key} = {self.name_of(value, wish)}")

    def _named_tuple(self, kind: Any) -> str:
        maker = self.name_of(collections.namedtuple, "namedtuple")
        defaults = [self.expression(v, kind.__name__) for v in kind._field_defaults.values()]
        more = f", defaults=[{', '.join(defaults)}]" if defaults else ""
        return f'{maker}("{kind.__name__}", {list(kind._fields)!r}{more})'

    # ---- values -------------------------------------------------------------------------------

    def expression(self, value: Any, name: str) -> str:
        """A value as an expression over names that are bound before it."""
        if (text := literal(value)) is not None:
            if text.startswith("torch."):
                text = self.name_of(torch, "torch") + text.removeprefix("torch")
            return text
        if isinstance(value, types.ModuleType | types.FunctionType | type) or import_of(value):
            return self._reference(value, name)
        if isinstance(value, torch.Tensor):
            return self._tensor(value, name)
        if isinstance(value, enum.Enum) and not isinstance(value, enum.Flag):
            return f"{self.name_of(type(value), type(value).__name__)}.{value.name}"
        if isinstance(value, functools.partial):
            return self._partial(value, name)
        if isinstance(value, typing.TypeVar) and not (value.__constraints__ or value.__bound__):
            return f'{self.name_of(typing.TypeVar, "TypeVar")}("{value.__name__}")'
        return self._container(value, name)

    def _reference(self, value: Any, name: str) -> str:
        if any(_same(value, other) for other in self.unfinished):
            raise self._unwritable(name, value, "it refers to a class that refers to it")
        own = getattr(value, "__name__", name).rpartition(".")[2]
        return self.name_of(value, own if own.isidentifier() else name)

    def _tensor(self, value: torch.Tensor, name: str) -> str:
        if value.numel() > LARGEST_TENSOR or type(value) is not torch.Tensor or value.requires_grad:
            raise self._unwritable(name, value)
        here = self.name_of(torch, "torch")
        numbers = self.expression(value.tolist(), name)
        where = "" if value.device.type == "cpu" else f', device="{value.device}"'
        return f"{here}.tensor({numbers}, dtype={here}{str(value.dtype)[5:]}{where})"

    def _partial(self, value: functools.partial[Any], name: str) -> str:
        made = self.name_of(functools.partial, "partial")
        inner = [self.expression(v, name) for v in (value.func, *value.args)]
        inner += [f"{k}={self.expression(v, name)}" for k, v in value.keywords.items()]
        return f"{made}({', '.join(inner)})"

    def _container(self, value: Any, name: str) -> str:
        kind = type(value)
        if kind in (set, frozenset):
            inner = ", ".join(sorted(self.expression(v, name) for v in value))
            return (
                f"{kind.__name__}([{inner}])" if kind is frozenset or not inner else f"{{{inner}}}"
            )
        if kind is types.SimpleNamespace:
            made = self.name_of(kind, "SimpleNamespace")
            inner = ", ".join(f"{k}={self.expression(v, name)}" for k, v in vars(value).items())
            return f"{made}({inner})"
        if dataclasses.is_dataclass(kind):
            made = self.name_of(kind, kind.__name__)
            given = [f.name for f in dataclasses.fields(kind) if f.init]
            inner = ", ".join(f"{n}={self.expression(getattr(value, n), name)}" for n in given)
            return f"{made}({inner})"
        if parts(value) is None:
            raise self._unwritable(name, value)
        names = {k: self.name_of(k, k.__name__) for k in classes(value)}

        def leaf(part: Any) -> str | None:
            return None if parts(part) is not None else self.expression(part, name)

        return rebuild(value, leaf, names)

    def _unwritable(self, name: str, value: Any, why: str = "") -> UnsupportedError:
        reason = why or "it cannot be written as source"
        return UnsupportedError(
            f"The model uses {name}, a {type(value).__name__}, but {reason}; {ADVICE}."
        )


class _Needs:
    """The names around a definition: variables of functions that enclose it, globals, bases."""

    def __init__(self, value: Any, snippet: Snippet, around: list[dict[str, Any]]) -> None:
        self.value = value
        self.functions = list(functions_of(value)) if isinstance(value, type) else [plain(value)]
        self.cells: dict[str, Any] = {}
        for function in self.functions:
            self.cells |= _closure(function)
        module = sys.modules.get(getattr(value, "__module__", None) or "")
        spaces = [f.__globals__ for f in self.functions]
        self.spaces = [*spaces, *([vars(module)] if module else []), *around]
        self.defaults = _written_defaults(snippet, self.functions)

    def find(self, name: str) -> tuple[bool, Any]:
        """Whether there is a value that must be written, and the value."""
        if name in self.cells:
            return True, self.cells[name]
        for space in self.spaces:
            if name in space:
                return True, space[name]
        for base in getattr(self.value, "__bases__", ()):
            if base.__name__ == name:
                return True, base
        if name in self.defaults:
            return True, self.defaults[name]
        return False, None


def _closure(function: types.FunctionType) -> dict[str, Any]:
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if name != "__class__":
            with contextlib.suppress(ValueError):  # a variable that was never assigned
                found[name] = cell.cell_contents
    return found


def _written_defaults(snippet: Snippet, functions: list[types.FunctionType]) -> dict[str, Any]:
    """Names that stand for a default value, when the scope in which they had it is gone."""
    found: dict[str, Any] = {}
    by_name = {f.__name__: f for f in functions}
    for node in ast.walk(ast.parse(snippet.text if not snippet.is_lambda else f"({snippet.text})")):
        function = by_name.get(getattr(node, "name", "<lambda>"))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and function:
            pairs = list(zip(node.args.defaults, function.__defaults__ or (), strict=False))
            keywords = function.__kwdefaults__ or {}
            for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
                if default is not None and argument.arg in keywords:
                    pairs.append((default, keywords[argument.arg]))
            found |= {d.id: value for d, value in pairs if isinstance(d, ast.Name)}
    return found


def _binds(statement: ast.stmt) -> frozenset[str]:
    return scopes.bound(ast.unparse(statement))


def _written_literal(statement: ast.stmt | None) -> str | None:
    """The text of the value in `name = 3`, if the statement is one like it."""
    value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign) else None
    if value is not None:
        with contextlib.suppress(ValueError):
            return literal(ast.literal_eval(value))
    return None


def _is_replaced(kind: type, key: str, value: Any, statement: ast.stmt | None, node: Any) -> bool:
    """Whether a method is not the one of the class's text, and no decorator explains it."""
    if not (isinstance(value, types.FunctionType) and issubclass(kind, nn.Module)):
        return False
    if value.__qualname__ == f"{kind.__qualname__}.{key}" or node.decorator_list:
        return False
    if statement is None:
        return True
    return isinstance(statement, ast.FunctionDef) and not statement.decorator_list


def _only_in_init(text: str) -> frozenset[str]:
    """The names that no function of the class uses but its __init__."""
    (node,) = ast.parse(text).body
    inner = getattr(node, "body", [])
    others = [n for n in inner if getattr(n, "name", None) != "__init__"]
    own = [n for n in inner if getattr(n, "name", None) == "__init__"]
    first, second = (scopes.used(ast.unparse(ast.Module(part, []))) for part in (own, others))
    return first - second


# ---- what can be imported -------------------------------------------------------------------


def import_of(value: Any) -> tuple[types.ModuleType, str] | None:
    """The module and the path inside of it under which any Python finds this very object."""
    if isinstance(value, types.ModuleType | str | bytes | int | float | complex | torch.Tensor):
        return None
    path = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    path = path or getattr(value, "_name", None)
    if not isinstance(path, str) or "<" in path:
        return None
    for name in dict.fromkeys([getattr(value, "__module__", None), *PUBLIC]):
        module = sys.modules.get(name) if isinstance(name, str) else None
        if module is not None and _is_importable(module):
            for inside in dict.fromkeys([path, path.rpartition(".")[2]]):
                if _reach(module, inside) is value:
                    return module, inside
    return None


def _reach(module: types.ModuleType, path: str) -> Any:
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def _is_importable(module: types.ModuleType) -> bool:
    """Whether `import` finds it by its name: built in, or in a file of that name."""
    if module.__name__ == "__main__":
        return False
    if getattr(module, "__file__", None) is None:
        return module.__spec__ is not None or module.__name__.startswith("torch.")
    return _root(module) is not None


def _root(module: types.ModuleType) -> Path | None:
    """The folder from which Python imports this module, if its file lies where its name says."""
    file = getattr(module, "__file__", None)
    if file is None:
        paths = list(getattr(module, "__path__", []))
        return Path(paths[0]).resolve().parent if paths and "." not in module.__name__ else None
    path = Path(file).resolve()
    parts = module.__name__.split(".")
    stem = path.name.partition(".")[0]
    own = path.parent if stem == "__init__" else path.parent / stem
    if list(own.parts[-len(parts) :]) != parts:
        return None
    return own.parents[len(parts) - 1]


def _same(one: Any, other: Any) -> bool:
    """The same object, or the same plain value: 1 is not True, and 0.0 is not -0.0."""
    return one is other or (type(one) is type(other) and literal(one) is not None
                            and literal(one) == literal(other))  # fmt: skip


def _is_imported(value: Any) -> bool:
    return isinstance(value, types.ModuleType) or import_of(value) is not None


def _is_one_line(text: str) -> bool:
    return "\n" not in text and not text.startswith("#")


def _comment(text: str) -> str:
    plain_text = text.encode("ascii", "replace").decode()
    return textwrap.fill(plain_text, 98, initial_indent="# ", subsequent_indent="# ")


def _title(value: Any) -> str:
    return str(getattr(value, "__qualname__", None) or type(value).__name__)
