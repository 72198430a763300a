"""The house stands: no circle of imports, and none from a lower layer to a higher one.

Imports inside of functions and those for types alone count like any other.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import kernelwright

HOME = Path(kernelwright.__file__).parent
# From the lowest to the highest; what stands in the root of the package by its name.
LAYERS: dict[str, tuple[str, ...]] = {
    "base": (
        *("cache", "completion", "errors", "failures", "files", "interrupts"),
        *("loading", "modes", "notebook", "options", "positions", "runtime", "shown", "spawn"),
        *("streams", "toolchain", "twins", "units", "version", "walk"),
    ),
    "ir": (
        *("accuracy", "counters", "dropout", "expr", "fakes", "graph", "handed", "histories"),
        *("interpret", "memory", "pattern", "places", "scalars", "schemas", "strides"),
    ),
    "problem": ("borrowed", "calls", "formats", "lent", "live", "problem", "structures"),
    "frontend": (
        *("capture", "casts", "composites", "effects", "frontend", "gauge", "probe"),
        "recurrences",
        *("samples", "tracing"),
    ),
    "training": ("training",),
    "targets": ("targets",),
    "rules": ("rules",),
    "expand": ("expand",),
    "plan": ("plan", "spec"),
    "lower": ("lower",),
    "emit": ("emit",),
    "pipeline": ("compiled", "details", "kinds", "ledger", "pipeline", "step"),
    "backends": ("backends",),
    "verify": ("verify",),
    "bench": ("bench",),
    "tune": ("tile_cache", "tune"),
    "profile": ("profile",),
    "tools": ("check", "doctor", "import_check"),
    "report": ("report",),
    "cli": (
        *("", "__main__", "arguments", "assertions", "cli", "commands", "module_paths"),
        *("pytest_plugin", "sweep"),
    ),
}
HEIGHT = {name: height for height, names in enumerate(LAYERS.values()) for name in names}


@cache
def imports() -> dict[str, set[str]]:
    """Each module, without the package's name, and the modules of ours that it imports."""
    paths = {_name(path): path for path in HOME.rglob("*.py")}
    found = {}
    for name, path in paths.items():
        asked = found[name] = set[str]()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                asked |= {n if _below(n) in paths else node.module for n in names}
            elif isinstance(node, ast.Import):
                asked |= {alias.name for alias in node.names}
        own = {_below(dotted) for dotted in asked if dotted.split(".")[0] == "kernelwright"}
        found[name] = own & paths.keys() - {name}
    return found


def _name(path: Path) -> str:
    parts = path.relative_to(HOME).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def _below(dotted: str) -> str:
    return dotted.partition(".")[2]


def layer(module: str) -> int:
    top = module.partition(".")[0]
    assert top in HEIGHT, f"{top} has no layer: say in LAYERS on what it stands"
    return HEIGHT[top]


def test_no_layer_imports_a_higher_one() -> None:
    upward = {
        f"{module} imports {asked}"
        for module, all_asked in imports().items()
        for asked in all_asked
        if layer(asked) > layer(module)
    }
    assert upward == set()


def test_no_imports_go_in_a_circle() -> None:
    left = {module: set(asked) for module, asked in imports().items()}
    while free := {module for module, asked in left.items() if not asked & left.keys()}:
        for module in free:
            del left[module]
    assert set(left) == set(), "these import one another, or what does"


def test_the_layers_are_those_of_the_house() -> None:
    """No name in LAYERS has been forgotten there."""
    tops = {module.partition(".")[0] for module in imports()}
    assert HEIGHT.keys() - tops <= {"runtime"}


def test_an_import_is_seen_wherever_it_stands() -> None:
    """Inside of a function, under TYPE_CHECKING, of a module and of a name in it."""
    found = imports()
    assert "plan.loop" in found["pipeline"] and "rules" in found["pipeline"]
    assert "compiled" in found["report.outcome"]
    assert {"pipeline", "problem"} <= found[""]
