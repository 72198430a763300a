"""Lines of emitted Python."""

from __future__ import annotations

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
