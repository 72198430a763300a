"""The networks of benchmarks/networks as model files, each in one of its sizes.

A family is a file in KernelBench's format with a table VARIANTS of sizes; the line CHOSEN names the
one that its get_inputs() and get_init_inputs() give. `write` makes a copy with another one chosen,
so that everything that takes a model file takes a network. Variants whose names begin with `small`
are for tests.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "networks"
FAMILIES = tuple(sorted(p.stem for p in FOLDER.glob("*.py")))


def variants(family: str) -> list[str]:
    """The names in the table VARIANTS of a family, in its order."""
    tree = ast.parse((FOLDER / f"{family}.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "VARIANTS":
            assert isinstance(node.value, ast.Dict)
            return [ast.literal_eval(key) for key in node.value.keys if key is not None]
    raise ValueError(f"{family}.py has no table VARIANTS")


def networks(small: bool) -> dict[str, str]:
    """The family of each variant, for tests or at ordinary sizes."""
    found = {}
    for family in FAMILIES:
        for name in variants(family):
            if name.startswith("small") is small:
                found[f"{family}_{name}" if small else name] = family
    return found


def write(family: str, variant: str, folder: Path) -> Path:
    """A model file with the sizes of one variant."""
    text = (FOLDER / f"{family}.py").read_text()
    text, count = re.subn(r'^CHOSEN = ".*"$', f'CHOSEN = "{variant}"', text, flags=re.MULTILINE)
    assert count == 1, f"{family}.py has no line CHOSEN"
    path = folder / f"{family}_{variant}.py"
    path.write_text(text)
    return path
