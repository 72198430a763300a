"""A Python file becomes a module, as if `python file.py` or `import package.file` had read it.

In: a path. Out: its text, or the module that running it gave. The one idea: the file finds what
stands beside it (`import helpers`) and around it (`from .layers import Block`), and is known to
Python under a name that depends on its path alone, so that pickle, inspect and dataclasses work.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import site
import sys
import sysconfig
import tokenize
import traceback
import types
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path

from kernelwright.errors import InputError

PREFIX = "kernelwright_user"  # of the modules' names

_models: set[str] = set()  # the folders of models, which are on sys.path for their sake only
_beside: dict[Path, dict[str, types.ModuleType]] = {}  # their modules, where the process has others


@dataclass(frozen=True)
class Place:
    """Where a file stands: its folder, and the package around it, if its folder is one."""

    path: Path
    package: str
    root: Path

    @property
    def folders(self) -> tuple[Path, ...]:
        """Where its imports are looked for before Python's own path."""
        return tuple(dict.fromkeys([self.path.parent, self.root]))


def place_of(path: Path) -> Place:
    """A folder with `__init__.py` is a package; the root is the first folder above without."""
    path = path.resolve()
    root, names = path.parent, []
    while (root / "__init__.py").is_file() and root.name.isidentifier():
        names.append(root.name)
        root = root.parent
    return Place(path, ".".join(reversed(names)), root)


def read_source(path: Path) -> str:
    """The text in the encoding that its BOM or its coding line names, with plain newlines."""
    try:
        if not path.is_file():
            raise InputError(f"There is no file {path}; give the path of a Python model file.")
        with tokenize.open(path) as file:
            return file.read()
    except (SyntaxError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} cannot be read: {error}. Save it as UTF-8, or name its encoding in its first "
            "line."
        ) from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error


def load_source(path: Path, text: str | None = None) -> types.ModuleType:
    """Run a Python file, or a text in its place, as a fresh module that its classes can find."""
    text = read_source(path) if text is None else text
    place = place_of(path)
    module = types.ModuleType(_module_name(place))
    module.__file__ = str(path)
    module.__package__ = place.package
    module.__spec__ = ModuleSpec(module.__name__, None, origin=str(path))
    sys.modules[module.__name__] = module
    try:
        with importing_from(place):
            exec(compile(text, str(path), "exec", dont_inherit=True), module.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[module.__name__]
        kind = type(error).__name__
        raise InputError(
            f"{path} raised {kind} while it was loaded (line {line_of(error, str(path))}): "
            f"{error}. Run it with python first."
        ) from error
    return module


def line_of(error: BaseException, file: str) -> int | None:
    """The line of `file` in which an exception was raised, or passed through last."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == file]
    return (own or frames)[-1].lineno


@contextlib.contextmanager
def importing_from(place: Place) -> Iterator[None]:
    """Imports look beside the file first, and afterwards still find it, behind all others.

    What was imported from elsewhere under the same name is out of sight meanwhile.
    """
    folders = [str(folder) for folder in place.folders]
    hidden = _hide_others(place)
    sys.modules.update(_beside.get(place.root, {}))
    before = [entry for entry in sys.path if entry not in folders or entry not in _models]
    sys.path[:] = folders + [entry for entry in before if entry not in folders]
    try:
        yield
    finally:
        added = [entry for entry in sys.path if entry not in before and entry not in folders]
        _models.update(entry for entry in folders if entry not in before)
        others = [entry for entry in before if entry in _models]
        theirs = [entry for entry in before if entry not in _models]
        sys.path[:] = added + theirs + [e for e in folders if e in _models] + others
        _beside.setdefault(place.root, {}).update(_take(set(hidden)))
        sys.modules.update(hidden)


def _hide_others(place: Place) -> dict[str, types.ModuleType]:
    """Take modules away whose name is also in this file's folders, but that are from elsewhere.

    Those of another model are forgotten; those that the process had itself are to be put back.
    """
    here = {Path(name).stem for folder in place.folders for name in os.listdir(folder)}
    hidden: dict[str, types.ModuleType] = {}
    for name in here & set(sys.modules):
        folder = _folder_of(sys.modules[name])
        if folder is None or folder in map(str, place.folders) or is_installed(Path(folder)):
            continue
        taken = _take({name})
        hidden |= {} if folder in _models else taken
    return hidden


def _take(names: set[str]) -> dict[str, types.ModuleType]:
    """Remove these modules and what is inside of them."""
    found = [loaded for loaded in sys.modules if loaded.partition(".")[0] in names]
    return {loaded: sys.modules.pop(loaded) for loaded in found}


def is_installed(path: Path) -> bool:
    """Whether every Python of this environment finds what is there, wherever it is started."""
    paths = sysconfig.get_paths()
    roots = {paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"]}
    roots |= {site.getusersitepackages()}
    return any(path.resolve().is_relative_to(Path(root).resolve()) for root in roots)


def _folder_of(module: types.ModuleType) -> str | None:
    """The entry of sys.path under which a top-level module was found."""
    places = [getattr(module, "__file__", None), *getattr(module, "__path__", [])]
    first = next((Path(p) for p in places if p), None)
    if first is None:
        return None
    return str(first.parents[1] if first.name == "__init__.py" else first.parent)


def _module_name(place: Place) -> str:
    """The same for the same path in every process; a second load in one process is numbered.

    Both stay known, since objects of both may be pickled.
    """
    stem = re.sub(r"\W", "_", place.path.stem)
    digest = hashlib.sha256(str(place.path).encode(errors="surrogateescape")).hexdigest()[:12]
    name, number = f"{PREFIX}_{stem}_{digest}", 1
    while (numbered := name if number == 1 else f"{name}_{number}") in sys.modules:
        number += 1
    return numbered
