"""Our code in the candidate's process, under a name that tells nothing.

In: the folder of this package, a name, and a socket. Out: a running server. The one idea: an
importer that reads our files as the modules of a package of another name, with that name in every
import of ours and in every code object, so that neither modules nor stacks tell a candidate what
is running it. This file is read as text by a bare interpreter: it imports nothing of ours.
"""

from __future__ import annotations

import ast
import gc
import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from pathlib import Path

OURS = "kernelwright"


class Importer(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `name` and what is below it in a folder, and renames our imports on the way."""

    def __init__(self, root: Path, name: str) -> None:
        self.root, self.name = root, name

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        first, *rest = fullname.split(".")
        if first != self.name:
            return None
        place = self.root.joinpath(*rest)
        is_package = (place / "__init__.py").is_file()
        file = place / "__init__.py" if is_package else place.with_suffix(".py")
        if not file.is_file():
            return None
        spec = importlib.machinery.ModuleSpec(fullname, self, is_package=is_package)
        spec.loader_state = file
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        assert module.__spec__ is not None
        file = module.__spec__.loader_state
        module.__spec__.loader_state = None
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                node.module = self._renamed(node.module)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    alias.name = self._renamed(alias.name)
        code = compile(tree, f"<{self.name}>", "exec", dont_inherit=True)
        module.__file__ = str(file)  # for as long as it is being read
        exec(code, module.__dict__)
        del module.__file__

    def _renamed(self, dotted: str) -> str:
        first, dot, rest = dotted.partition(".")
        return f"{self.name}{dot}{rest}" if first == OURS else dotted


def start(root: str, name: str, fd: int, role: str) -> None:
    """A server that forks (`main`), or a single process that serves the judge (`alone`)."""
    sys.meta_path.insert(0, Importer(Path(root), name))
    gc.disable()  # imports leave no garbage, and a quarter of their time is looking for it
    importlib.import_module(f"{name}.bench.stand")  # with the clocks of torch as they are now
    server = importlib.import_module(f"{name}.verify.server")
    gc.enable()
    getattr(server, role)(fd)
