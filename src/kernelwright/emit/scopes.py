"""Which names of a Python text are the module's own, and the text with some of them renamed.

In: a text. Out: the names that it binds or uses at the level of the module, and what it imports
under which name; `renamed` gives the text with module-level names changed, in every scope that sees
them, and with attributes, keywords of calls, locals and strings as they were.
"""

from __future__ import annotations

import ast
import re
import symtable
from collections.abc import Iterator, Mapping
from functools import lru_cache

from kernelwright.emit.edits import Edit, Source

Functions = ast.FunctionDef | ast.AsyncFunctionDef
OPENING = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)  # a scope
Comprehensions = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


# One text is asked about several times in a row, and the library is the same in many files.
few = lru_cache(maxsize=64)


@few
def _table(text: str) -> symtable.SymbolTable:
    return symtable.symtable(text, "module", "exec")


@few
def _source(text: str) -> Source:
    return Source(text)


@few
def bound(text: str) -> frozenset[str]:
    """The names that a module of this text has once it was run, or binds later by `global`."""
    top = _table(text)
    names = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported()}
    names |= {s.get_name() for s in top.get_symbols() if s.is_namespace()}
    for table in _tables(top):
        names |= {
            s.get_name() for s in table.get_symbols() if s.is_declared_global() and s.is_assigned()
        }
    return frozenset(names)


@few
def used(text: str) -> frozenset[str]:
    """The names that the text looks up in the module, from any scope; builtins are among them."""
    top = _table(text)
    names = {s.get_name() for s in top.get_symbols() if s.is_referenced()}
    for table in _tables(top):
        names |= {s.get_name() for s in table.get_symbols() if s.is_global()}
    return frozenset(names)


def used_at_once(text: str) -> set[str]:
    """The names that are looked up while the text runs, before any function in it is called."""
    return set(_outside_functions(_table(text)))


def _outside_functions(table: symtable.SymbolTable) -> Iterator[str]:
    is_top = table.get_type() == "module"
    for symbol in table.get_symbols():
        if symbol.is_referenced() if is_top else symbol.is_global():
            yield symbol.get_name()
    for child in table.get_children():
        if child.get_type() == "class":
            yield from _outside_functions(child)
        elif child.get_name() in ("listcomp", "genexpr", "dictcomp", "setcomp"):
            yield from (s.get_name() for s in child.get_symbols() if s.is_global())


def _tables(top: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    for child in top.get_children():
        yield child
        yield from _tables(child)


@few
def imports(text: str) -> Mapping[str, set[tuple[str, ...]]]:
    """Name -> what import statements of the module bind it to: ("os",) or ("torch", "nn")."""
    found: dict[str, set[tuple[str, ...]]] = {}
    for node in _module_level(_source(text).tree):
        if isinstance(node, ast.Import):
            for a in node.names:
                name = a.asname or a.name.partition(".")[0]
                found.setdefault(name, set()).add((a.name if a.asname else name,))
        elif isinstance(node, ast.ImportFrom):
            for a in node.names:
                origin = ("." * node.level + (node.module or ""), a.name)
                found.setdefault(a.asname or a.name, set()).add(origin)
    return found


@few
def otherwise_bound(text: str) -> frozenset[str]:
    """The names that the module binds by anything but an import."""
    top = _table(text)
    names = {s.get_name() for t in _tables(top) for s in t.get_symbols() if s.is_declared_global()}
    for node in _module_level(_source(text).tree):
        names |= set(_bindings(node))
    return frozenset(names)


def _module_level(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes whose bindings are the module's, the statements that open other scopes included."""
    stack = [tree]
    while stack:
        above = stack.pop()
        for node in ast.iter_child_nodes(above):
            if isinstance(above, ast.comprehension) and node is above.target:
                continue
            yield node
            if not isinstance(node, OPENING):
                stack.append(node)


def _bindings(node: ast.AST) -> Iterator[str]:
    """The names that this very node binds, imports left out."""
    if isinstance(node, Functions | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id
    elif (
        isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name is not None
    ):
        yield node.name
    elif isinstance(node, ast.MatchMapping) and node.rest is not None:
        yield node.rest


def renamed(text: str, names: Mapping[str, str]) -> str:
    """The text with these module-level names changed wherever they are meant."""
    if not names:
        return text
    source = _source(text)
    edits: list[Edit] = []
    last = 0
    for statement in source.tree.body:
        end = source.span(statement)[1]
        part = text[last:end].lstrip(" \t;")
        start, last = end - len(part), end
        edits += [(start + a, start + b, new) for a, b, new in _edits_of(part, names)]
    return source.replaced(edits)


def _edits_of(statement: str, names: Mapping[str, str]) -> tuple[Edit, ...]:
    """No statement hides a name of the module from another, so each is looked at by itself.

    Those of the library are the same in every emitted file, and so is what is done to them.
    """
    if statement.isascii():  # else a name may be written in other letters than it has
        names = {name: names[name] for name in _words(statement) & names.keys()}
    return _edits(statement, frozenset(names.items()))


@lru_cache(maxsize=1024)
def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text))


@lru_cache(maxsize=1024)
def _edits(statement: str, names: frozenset[tuple[str, str]]) -> tuple[Edit, ...]:
    if not names:
        return ()
    source = Source(statement)
    renamer = _Renamer(source, dict(names))
    for node in source.tree.body:
        renamer.visit(node)
    return tuple(renamer.edits)


class _Renamer:
    """One walk with the names that the scopes on the way hide."""

    def __init__(self, source: Source, names: Mapping[str, str]) -> None:
        self.source = source
        self.names = names
        self.edits: list[Edit] = []
        self.hidden: frozenset[str] = frozenset()  # by functions around
        self.local: frozenset[str] = frozenset()  # by the class body itself
        self.so_far: frozenset[str] = frozenset()  # by those of its statements that have run

    def new(self, name: str, reading: bool = False) -> str | None:
        if name in self.hidden or name in (self.so_far if reading else self.local):
            return None
        return self.names.get(name)

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, Functions):
            self._function(node)
        elif isinstance(node, ast.ClassDef):
            self._class(node)
        elif isinstance(node, ast.Lambda):
            self._defaults(node.args)
            self._inside(node, [node.body])
        elif isinstance(node, Comprehensions):
            self._comprehension(node)
        elif isinstance(node, ast.JoinedStr):
            self._formatted(node)
        else:
            self._plain(node)
            for child in ast.iter_child_nodes(node):
                self.visit(child)

    def _plain(self, node: ast.AST) -> None:
        reading = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        if isinstance(node, ast.Name) and (new := self.new(node.id, reading)):
            self.edits.append((*self.source.span(node), new))
        elif isinstance(node, ast.Global):
            for name in node.names:
                if name in self.names:
                    self._word(node, name, self.names[name], after=len("global"))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                self._alias(alias, isinstance(node, ast.Import))
        elif isinstance(node, ast.ExceptHandler) and node.name and (new := self.new(node.name)):
            kind = self.source.span(node.type or node)[1] - self.source.span(node)[0]
            self._word(node, node.name, new, after=kind)
        elif isinstance(node, ast.MatchAs | ast.MatchStar) and node.name:
            if new := self.new(node.name):
                self._word(node, node.name, new, last=True)
        elif isinstance(node, ast.MatchMapping) and node.rest and (new := self.new(node.rest)):
            self._word(node, node.rest, new, last=True)

    def _alias(self, alias: ast.alias, whole: bool) -> None:
        name = alias.asname or (alias.name.partition(".")[0] if whole else alias.name)
        if not (new := self.new(name)):
            return
        if alias.asname or "." not in alias.name:
            text = f"{alias.name} as {new}"
        else:
            text = f"{alias.name}, {name} as {new}"  # `import a.b` binds a, and loads a.b
        self.edits.append((*self.source.span(alias), text))

    def _word(self, node: ast.AST, word: str, new: str, after: int = 0, last: bool = False) -> None:
        """Edit an identifier that the tree gives no position of its own."""
        start, end = self.source.span(node)
        places = list(_identifiers(self.source.text[start:end], word))
        chosen = [p for p in places if p >= after][-1 if last else 0]
        self.edits.append((start + chosen, start + chosen + len(word), new))

    def _function(self, node: Functions) -> None:
        for decorator in node.decorator_list:
            self.visit(decorator)
        if new := self.new(node.name):
            self._word(node, node.name, new, after=len("def"))
        self._defaults(node.args)
        for argument in _arguments(node.args):
            if argument.annotation is not None:
                self.visit(argument.annotation)
        if node.returns is not None:
            self.visit(node.returns)
        self._inside(node, node.body)

    def _class(self, node: ast.ClassDef) -> None:
        for outer in [*node.decorator_list, *node.bases, *node.keywords]:
            self.visit(outer)
        if new := self.new(node.name):
            self._word(node, node.name, new, after=len("class"))
        before = self.local, self.so_far
        self.local, self.so_far = frozenset(_locals(node.body)), frozenset()
        for statement in node.body:
            self.visit(statement)
            self.so_far |= _locals([statement])
        self.local, self.so_far = before

    def _defaults(self, arguments: ast.arguments) -> None:
        for default in [*arguments.defaults, *arguments.kw_defaults]:
            if default is not None:
                self.visit(default)

    def _inside(self, node: Functions | ast.Lambda, body: list[ast.stmt] | list[ast.expr]) -> None:
        """A function's body: its arguments and locals hide what is outside of it."""
        own, declared = _locals_and_globals(body)
        own |= {a.arg for a in _arguments(node.args)}
        before = self._enter((self.hidden | own) - declared)
        for inner in body:
            self.visit(inner)
        self._leave(before)

    def _enter(self, hidden: frozenset[str]) -> tuple[frozenset[str], ...]:
        """Functions and comprehensions do not see the names of a class body around them."""
        before = self.hidden, self.local, self.so_far
        self.hidden, self.local, self.so_far = hidden, frozenset(), frozenset()
        return before

    def _leave(self, before: tuple[frozenset[str], ...]) -> None:
        self.hidden, self.local, self.so_far = before

    def _comprehension(self, node: Comprehensions) -> None:
        targets = {
            n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)
        }
        self.visit(node.generators[0].iter)
        before = self._enter(self.hidden | targets)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.comprehension):
                inner = [child.target, *child.ifs]
                inner += [child.iter] if child is not node.generators[0] else []
                for part in inner:
                    self.visit(part)
            else:
                self.visit(child)
        self._leave(before)

    def _formatted(self, node: ast.JoinedStr) -> None:
        """Before Python 3.12 the tree does not know where inside of an f-string a name stands."""
        start, end = self.source.span(node)
        try:
            found = list(fields(self.source.text[start:end]))
            inners = [Source(f"({self.source.text[start + a : start + b]})") for a, b in found]
        except (IndexError, SyntaxError, ValueError):  # quotes inside of quotes: 3.12, which knows
            for child in ast.iter_child_nodes(node):
                self.visit(child)
            return
        for (first, _), inner in zip(found, inners, strict=True):
            part = _Renamer(inner, self.names)
            part.hidden, part.local, part.so_far = self.hidden, self.local, self.so_far
            part.visit(inner.tree)
            shift = start + first - 1
            self.edits += [(shift + at, shift + to, new) for at, to, new in part.edits]


LITERAL = re.compile(r"(?P<comment>#[^\n]*)|(?P<prefix>\w*)(?P<quote>\"\"\"|\'\'\'|[\"\'])")


def fields(text: str) -> Iterator[tuple[int, int]]:
    """Where the expressions inside of f-strings stand, in a text of string literals."""
    at = 0
    while literal := LITERAL.search(text, at):
        at = literal.end()
        if literal["comment"]:
            continue
        formatted, raw = ("f" in literal["prefix"].lower(), "r" in literal["prefix"].lower())
        while not text.startswith(literal["quote"], at):
            escaped = text[at] == "\\" and text[at + 1] not in "{}"
            if not raw and text.startswith("\\N{", at):
                at = text.index("}", at)
            elif escaped or text[at : at + 2] in ("{{", "}}"):
                at += 2
            elif formatted and text[at] == "{":
                found, at = _field(text, at + 1)
                yield from found
            else:
                at += 1
        at += len(literal["quote"])


def _field(text: str, at: int) -> tuple[list[tuple[int, int]], int]:
    """The expressions of a replacement field that begins here, and where it is over."""
    first, depth = at, 0
    while depth or (text[at] not in "}:" and (text[at] != "!" or text[at + 1] == "=")):
        if (literal := LITERAL.match(text, at)) and literal["quote"]:
            at = text.index(literal["quote"], literal.end()) + len(literal["quote"])
        else:
            depth += (text[at] in "([{") - (text[at] in ")]}")
            at += 1
    found = [(first, at)]
    while text[at] != "}":  # the format may hold fields of its own
        if text[at] == "{":
            inner, at = _field(text, at + 1)
            found += inner
        else:
            at += 1
    return found, at + 1


def _arguments(node: ast.arguments) -> list[ast.arg]:
    starred = [a for a in (node.vararg, node.kwarg) if a is not None]
    return [*node.posonlyargs, *node.args, *node.kwonlyargs, *starred]


def _locals(body: list[ast.stmt]) -> set[str]:
    """The names that statements bind in their own scope, or in the one that they are in."""
    return _locals_and_globals(body)[0]


def _locals_and_globals(body: list[ast.stmt] | list[ast.expr]) -> tuple[set[str], set[str]]:
    """The names that statements bind in their scope, and those that they declare global in it."""
    names: set[str] = set()
    declared: set[str] = set()
    for node in _module_level(ast.Module(list(body), [])):  # type: ignore[arg-type]
        names.update(_bindings(node))
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {a.asname or a.name.partition(".")[0] for a in node.names}
        elif isinstance(node, ast.Global):
            declared.update(node.names)
    return names - declared, declared


def _identifiers(text: str, word: str) -> Iterator[int]:
    """Where a word stands as a whole identifier; identifiers may be written in any script."""
    at = text.find(word)
    while at >= 0:
        around = text[max(at - 1, 0) : at] + text[at + len(word) : at + len(word) + 1]
        if not any(f"a{c}".isidentifier() for c in around):
            yield at
        at = text.find(word, at + 1)
