"""The Python of embedded/ as it stands in an emitted file: one namespace, imports first."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from kernelwright import embedded

FOLDER = Path(embedded.__file__).parent
FILES = ("baked", "memo", "recorded", "traced", "launches", "steps", "fusion")
HOME = embedded.__name__


@cache
def embedded_parts(products: bool) -> tuple[tuple[str, ...], str]:
    """The import lines of all files, and their code with each docstring as a comment above it.

    `products` says that the file has generated products.
    """
    imports: dict[str, None] = {}
    bodies = []
    for name in (("products",) if products else ()) + FILES:
        text = (FOLDER / f"{name}.py").read_text()
        lines, tree = text.splitlines(), ast.parse(text)
        found = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
        for node in found:
            if not (isinstance(node, ast.ImportFrom) and (node.module or "").startswith(HOME)):
                imports[ast.unparse(node)] = None
        last = max(node.end_lineno or 0 for node in found)
        comment = [f"# {line}".rstrip() for line in (ast.get_docstring(tree) or "").splitlines()]
        bodies.append("\n".join([*comment, "", *lines[last:]]))
    return tuple(imports), "\n\n\n".join(b.strip("\n") for b in bodies)
