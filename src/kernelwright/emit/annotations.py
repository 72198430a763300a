"""What `from __future__` meant, written out: an emitted file may not begin with such a line.

In: a text. Out: the same text without its __future__ imports, line for line. Of these imports only
`annotations` means anything to a Python of today: annotations are not evaluated but kept as text.
So they become text, and names that type checkers alone know do no harm.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from kernelwright.emit.edits import Edit, Source, same_lines


def without_future(text: str) -> str:
    source = Source(text)
    imports = [
        n for n in source.tree.body if isinstance(n, ast.ImportFrom) and n.module == "__future__"
    ]
    edits = [_removed(source, statement) for statement in imports]
    if any(a.name == "annotations" for statement in imports for a in statement.names):
        edits += quoted(source, source.tree)
    return source.replaced(edits)


def quoted(
    source: Source, tree: ast.AST, keep: Callable[[ast.expr], bool] = lambda node: False
) -> list[Edit]:
    """Edits that turn annotations into strings, but for those that `keep` vouches for."""
    edits = []
    for node in _annotations(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str | None)
        if not is_text and not keep(node):
            text = source.segment(node)
            edits.append((*source.span(node), same_lines(_literal(ast.unparse(node)), text)))
    return edits


def _literal(text: str) -> str:
    return f'"{text}"' if '"' not in text and "\\" not in text else repr(text)


def _annotations(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            yield node.annotation
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns is not None:
            yield node.returns


def _removed(source: Source, statement: ast.stmt) -> Edit:
    """Nothing in its place, or `...` where a semicolon needs a statement beside it."""
    start, end = source.span(statement)
    line_end = source.text.find("\n", end)
    after = source.text[end : line_end if line_end >= 0 else len(source.text)]
    before = source.text[source.text.rfind("\n", 0, start) + 1 : start]
    alone = not before.strip() and not after.split("#")[0].strip()
    blank = "\n" * source.segment(statement).count("\n")
    return (start, end, blank if alone else "...")
