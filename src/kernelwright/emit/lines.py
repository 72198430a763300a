"""Lines of emitted Python."""

from __future__ import annotations

import json

# The indentation that most statements get later: they stand in a method.
METHOD = 8


def listed(
    indent: str, opening: str, items: list[str], closing: str, margin: int = METHOD
) -> list[str]:
    """A bracketed list on one line where it fits, else an item a line."""
    comma = "," if len(items) == 1 and opening in ("(", "return (") else ""
    line = f"{indent}{opening}{', '.join(items)}{comma}{closing}"
    if len(line) + margin <= 100:
        return [line]
    return [f"{indent}{opening}", *(f"{indent}    {i}," for i in items), f"{indent}{closing}"]


def indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def python(value: object) -> str:
    """A literal as the formatter would write it: double quotes."""
    if isinstance(value, str):
        return json.dumps(value) if value.isascii() and value.isprintable() else repr(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{python(k)}: {python(v)}" for k, v in value.items()) + "}"
    if isinstance(value, tuple):
        return f"({', '.join(map(python, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, list):
        return f"[{', '.join(map(python, value))}]"
    return repr(value)
