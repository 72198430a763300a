"""The shape of the source itself: no modules import each other in a circle."""

from __future__ import annotations

import ast
from pathlib import Path

import kernelwright

ROOT = Path(kernelwright.__file__).parent


def modules() -> dict[str, Path]:
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = ("kernelwright", *path.relative_to(ROOT).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def statements(tree: ast.Module) -> list[ast.Import | ast.ImportFrom]:
    """Imports at the top of a file, those for type checkers among them; not inside functions."""
    found: list[ast.Import | ast.ImportFrom] = []
    for node in tree.body:
        inside = node.body if isinstance(node, ast.If) else [node]
        found += [n for n in inside if isinstance(n, ast.Import | ast.ImportFrom)]
    return found


def imported(path: Path, known: dict[str, Path]) -> set[str]:
    found: set[str] = set()
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        else:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in known else str(node.module) for name in names}
    return found & known.keys()


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import each other, in order; none where there is no circle."""
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for other in sorted(graph[name]):
            found = visit(other, [*path, name])
            if found:
                return found
        done.add(name)
        return []

    return next((found for name in sorted(graph) if (found := visit(name, []))), [])


def test_no_modules_import_each_other_in_a_circle() -> None:
    known = modules()
    graph = {name: imported(path, known) - {name} for name, path in known.items()}
    assert len(graph) > 100
    assert circle(graph) == []


def test_a_circle_would_be_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
