"""The networks of benchmarks/networks as model files, each in one of its sizes (model_files.py).

Variants whose names begin with `small` are for tests.
"""

from __future__ import annotations

from pathlib import Path

from model_files import choose, variants

FOLDER = Path(__file__).resolve().parent / "networks"
FAMILIES = tuple(sorted(p.stem for p in FOLDER.glob("*.py")))


def networks(small: bool) -> dict[str, str]:
    """The family of each variant, for tests or at ordinary sizes."""
    found = {}
    for family in FAMILIES:
        for name in variants(FOLDER / f"{family}.py"):
            if name.startswith("small") is small:
                found[f"{family}_{name}" if small else name] = family
    return found


def write(family: str, variant: str, folder: Path) -> Path:
    """A model file with the sizes of one variant."""
    return choose(FOLDER / f"{family}.py", variant, folder / f"{family}_{variant}.py")
