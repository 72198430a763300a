"""Every source file with the first sentence of its docstring or comment, as a page of the site.

In: the files of the package. Out: Markdown, made when the site is built (conf.py): a list that is
kept by hand falls behind, and a new file needs no entry but the sentence that it begins with.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "kernelwright"
SUFFIXES = (".py", ".cuh", ".hpp", ".cu", ".cpp")


def page() -> str:
    lines = ["# Files", "", "Every file of the package, by the sentence that it begins with."]
    folder = None
    for path, sentence in sentences().items():
        if path.parent != folder:
            folder = path.parent
            name = folder.relative_to(PACKAGE).as_posix()
            lines += ["", f"## {'kernelwright' if name == '.' else name}/", ""]
            lines += ["| file | what it is |", "|---|---|"]
        lines.append(f"| `{path.name}` | {_cell(sentence)} |")
    return "\n".join(lines) + "\n"


def sentences() -> dict[Path, str]:
    """The files of each folder, folder by folder."""
    found = [p for p in PACKAGE.rglob("*.*") if p.suffix in SUFFIXES]
    return {p: sentence(p) for p in sorted(found, key=lambda p: (p.parent, p.name))}


def sentence(path: Path) -> str:
    """The first sentence of a file; nothing if it does not say what it is."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        told = ast.get_docstring(ast.parse(text)) or ""
    else:
        head = re.match(r"(?:#pragma once\s+)?((?://[^\n]*\n)+)", text)
        told = re.sub(r"^// ?", "", head[1], flags=re.MULTILINE) if head else ""
    first = told.split("\n\n")[0]
    return re.split(r"(?<=\.)\s", " ".join(first.split()))[0]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
