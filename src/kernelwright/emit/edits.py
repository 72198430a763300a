"""Edits of Python text at places that its syntax tree names; all else stays as it was written.

In: a text. Out: the same text with some spans replaced. Trees count columns in bytes of UTF-8, and
strings count characters: the translation is here, once.
"""

from __future__ import annotations

import ast

Edit = tuple[int, int, str]


class Source:
    """A text, its syntax tree, and where the nodes of the tree stand in it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self.starts = [0]
        self.lines = text.split("\n")
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line) + 1)

    def offset(self, line: int, column: int) -> int:
        """The index in the text of a line (from 1) and a column (in bytes, from 0)."""
        before = self.lines[line - 1].encode()[:column]
        return self.starts[line - 1] + len(before.decode())

    def span(self, node: ast.AST) -> tuple[int, int]:
        first = (node.lineno, node.col_offset)  # type: ignore[attr-defined]
        last = (node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]
        return self.offset(*first), self.offset(*last)

    def segment(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return self.text[start:end]

    def replaced(self, edits: list[Edit]) -> str:
        """The text with each span replaced; an edit inside of an earlier, larger one is dropped."""
        parts, at = [], 0
        for start, end, new in sorted(set(edits), key=lambda e: (e[0], -e[1])):
            if start >= at:
                parts += [self.text[at:start], new]
                at = end
        return "".join([*parts, self.text[at:]])


def same_lines(new: str, old: str) -> str:
    """An expression instead of another, on as many lines, so that all lines keep their numbers."""
    missing = old.count("\n") - new.count("\n")
    return f"({new}" + "\n" * missing + ")" if missing > 0 else new
