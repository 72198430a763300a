"""Memory is given back where it is read last, not where the function ends.

In: the lines of a function that is straight-line code but for branches. Out: the same lines, with
`del` behind the statement that reads a value last, where memory is asked for later on.
"""

from __future__ import annotations

import ast


def freed(lines: list[str]) -> list[str]:
    """The lines of the function, which forgets what it has made as soon as it can."""
    (function,) = ast.parse("\n".join(lines)).body
    assert isinstance(function, ast.FunctionDef)
    made: set[str] = set()
    last: dict[str, int] = {}
    asks = 0
    for i, statement in enumerate(function.body):
        names = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
        if isinstance(statement, ast.Assign):  # what a branch or a loop makes may not be there
            made |= {node.id for node in names if isinstance(node.ctx, ast.Store)}
        calls = any(isinstance(node, ast.Call) for node in ast.walk(statement))
        asks = i if calls and any(isinstance(node.ctx, ast.Store) for node in names) else asks
        last |= {node.id: i for node in names if node.id in made}
    found = list(lines)
    for i in range(asks - 1, -1, -1):
        over = sorted(name for name, at in last.items() if at == i)
        if over and not isinstance(function.body[i], ast.Return):
            found.insert(function.body[i].end_lineno or 0, f"    del {', '.join(over)}")
    return found
