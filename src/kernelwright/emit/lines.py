"""Lines of emitted Python."""

from __future__ import annotations

import re

from kernelwright.emit.cpp import hyphenated

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


def filled(opening: str, items: list[str], closing: str, margin: int = 4) -> list[str]:
    """A bracketed list of names on one line where it fits, else on as few as it takes."""
    inside = ", ".join(items)
    if len(opening) + len(inside) + len(closing) + margin <= 100:
        return [f"{opening}{inside}{closing}"]
    lines = [""]
    for item in items:
        if lines[-1] and len(lines[-1]) + len(item) + margin > 94:
            lines.append("")
        lines[-1] += f" {item}," if lines[-1] else f"{item},"
    if len(lines) == 1:
        lines = [inside]
    return [opening, *indented(lines), closing]


def indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def docstring(text: str, end: str = "\n") -> str:
    """A triple-quoted literal of any text: user names may hold quotes and backslashes."""
    safe = (
        re.sub(r"[^\x20-\x7e\n]", "?", hyphenated(text)).replace("\\", "\\\\").replace('"""', "'''")
    )
    return f'"""{safe}{end}"""'
