"""`package.module:Class`, as people type it, becomes the path of a model file.

In: what stands on the command line. Out: a path, which may be of a file that exists only meanwhile.
A name that is a file, or looks like one, is a path; else it is looked for where Python, started
in this folder, would import it from, without importing it. A class with another name than Model (of
a candidate: ModelNew) gets a file beside its own, with the same text and `Model = Class` behind it:
what the class needs from around it is found as ever. So does an exported program (.pt2), with the
code of its graph.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path

from kernelwright.errors import InputError
from kernelwright.loading import read_source

DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
OF_A_CLASS = re.compile(r"(?P<place>.+):(?P<kind>[^\W\d]\w*)")


@contextlib.contextmanager
def model_file(text: str, wanted: str = "Model") -> Iterator[Path]:
    """A file whose `wanted` is the class that is meant; one written for that is gone afterwards."""
    path, kind = _named(text, wanted)
    if path.suffix == ".pt2" and path.is_file():
        from kernelwright.frontend.exported import model_text

        kind, source = "pt2", model_text(path)
    elif kind == wanted:
        yield path
        return
    else:
        source = read_source(path)
        if not re.search(rf"\b{kind}\b", source):
            raise InputError(f"{path} defines no class {kind}; name one that stands in it.")
        source = f"{source.rstrip()}\n\n\n{wanted} = {kind}\n"
    written = path.with_name(f"{path.stem}_{kind}.py")
    try:
        file = written.open("x", encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"{text} needs the file {written} for a while, which cannot be made: {error.strerror}."
        ) from error
    try:
        with file:
            file.write(source)
        yield written
    finally:
        written.unlink(missing_ok=True)


def _named(text: str, wanted: str) -> tuple[Path, str]:
    """The file that is meant, and the class in it."""
    if os.path.lexists(text):
        return Path(text), wanted
    match = OF_A_CLASS.fullmatch(text)
    place, kind = (match["place"], match["kind"]) if match else (text, wanted)
    if place.endswith(".py") or not DOTTED.fullmatch(place):
        return Path(place), kind
    return _found(place), kind


def _found(dotted: str) -> Path:
    """Where Python would find a module; of its packages none is run for that."""
    top, *rest = dotted.split(".")
    spec = PathFinder.find_spec(top, [os.getcwd(), *sys.path])
    if spec is None:
        with contextlib.suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(top)  # one that an import hook knows
    places = list(spec.submodule_search_locations or ()) if spec else []
    found = [spec.origin] if spec and spec.origin else []
    for part in rest:
        inner = [os.path.join(place, part) for place in places]
        found = [end for i in inner for end in (os.path.join(i, "__init__.py"), f"{i}.py")]
        places = inner
    path = next((p for p in found if p.endswith(".py") and os.path.isfile(p)), None)
    if path is None:
        raise InputError(
            f"There is neither a file {dotted} nor a module of that name here; give the path of a "
            "Python model file, or a module that python finds from this folder."
        )
    return Path(os.path.relpath(path))
