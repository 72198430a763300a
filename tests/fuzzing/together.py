"""Many emitted files, one build: their kernels share a library, each file's in a namespace.

In: emitted texts. Out: their modules, loaded as anybody loads them, but that the library which they
would build is there already. A compiler's start and the headers cost more than a small model's
kernels, so a hundred models in a few units take seconds each instead of half a minute.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import subprocess
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from checking import native_flags
from torch.utils import cpp_extension

from kernelwright.emit import library
from kernelwright.toolchain import compiler, nvcc

FUNCTION = re.compile(r'extern "C" ((?:const )?\w+\*?) (\w+)\(')
# Where a run names the function that starts a kernel; the name in quotes is what watchers are told.
STARTED = re.compile(r'(\brun\.launch\(\s*"\w+",\s+)(\w+)')
LIBRARY = re.compile(r"\b_kw\d*_library\((?=\")")
INCLUDE = re.compile(r"^#include <.*>$", re.MULTILINE)
CPU_FLAGS = ["-O1", "-std=c++17", "-fopenmp", "-shared", "-fPIC", "-fno-math-errno", "-w"]
CUDA_FLAGS = ["-O3", "-std=c++17", "-shared", "-Xcompiler", "-fPIC", "-w"]


class BuildFailed(AssertionError):
    """The compiler's own words."""


def in_namespace(source: str, name: str) -> tuple[list[str], str]:
    """The system headers of an emitted file, and its C++ inside a namespace.

    Its C functions have the namespace in their names, since a library has each name once; so have
    those that its runs start.
    """
    text = library.headers(source) + "\n" + library.programs(source)
    text = FUNCTION.sub(rf'extern "C" \1 {name}_\2(', text)
    text = STARTED.sub(rf"\1{name}_\2", text)
    inside = INCLUDE.sub("", text)
    return INCLUDE.findall(text), f"namespace {name} {{\n{inside}\n}}  // namespace {name}\n"


def build(sources: dict[str, str], folder: Path, device: str, units: int = 1) -> dict[str, Any]:
    """By name, the library of each emitted text; they are spread over some units."""
    names = [name for name, source in sources.items() if library.has_programs(source)]
    groups = [group for i in range(units) if (group := names[i::units])]
    with ThreadPoolExecutor(max(1, len(groups))) as pool:
        built = list(
            pool.map(
                lambda at: _unit({n: sources[n] for n in groups[at]}, folder / f"unit{at}", device),
                range(len(groups)),
            )
        )
    return {
        name: Named(ctypes.CDLL(str(path)), name)
        for group, path in zip(groups, built, strict=True)
        for name in group
    }


def _unit(sources: dict[str, str], stem: Path, device: str) -> Path:
    includes: dict[str, None] = {}
    parts = []
    for name, source in sources.items():
        found, text = in_namespace(source, name)
        includes |= dict.fromkeys(found)
        parts.append(text)
    unit = stem.with_suffix(".cu" if device == "cuda" else ".cpp")
    unit.write_text("\n".join([*includes, *parts]))
    done = subprocess.run(command(unit, device), capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildFailed(f"{', '.join(sources)}: {done.stderr[:2000]}")
    return unit.with_suffix(".so")


def command(unit: Path, device: str) -> list[str]:
    output = ["-o", str(unit.with_suffix(".so")), str(unit)]
    if device == "cuda":
        arch = "-gencode=arch=compute_90a,code=sm_90a"
        return [str(nvcc()), arch, *CUDA_FLAGS, *output]
    return [str(compiler()), *native_flags(), *CPU_FLAGS, *output]


class Named:
    """The functions of one emitted file in a library of many: what ctypes.CDLL is to it."""

    def __init__(self, whole: ctypes.CDLL, name: str) -> None:
        self._whole, self._own = whole, name

    def __getitem__(self, name: str) -> Any:
        return self._whole[f"{self._own}_{name}"]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        found = self[name]
        setattr(self, name, found)  # its types are set on it, and must stay
        return found


def load(source: str, built: Any) -> types.ModuleType:
    """An emitted file as a module over a library that exists."""
    module = types.ModuleType("emitted")
    module.__dict__["built"] = lambda *texts: built
    source = LIBRARY.sub("built(", source)  # of a file for the CPU
    with _building(built):
        exec(compile(source, "<emitted>", "exec", dont_inherit=True), module.__dict__)
    return module


@contextlib.contextmanager
def _building(built: Any) -> Iterator[None]:
    """Meanwhile a build of kernels gives this library at once; what calls them is built."""
    kept = cpp_extension.load, cpp_extension.load_inline, ctypes.CDLL

    def only_calls(build: Any) -> Any:
        def built_or_not(*args: Any, **kwargs: Any) -> Any:
            is_ours = kwargs["name"].startswith(("kw_calls", "kw_node"))
            return build(*args, **kwargs) if is_ours else "kernels"

        return built_or_not

    try:
        cpp_extension.load, cpp_extension.load_inline = map(only_calls, kept[:2])
        ctypes.CDLL = lambda path: built if path == "kernels" else kept[2](path)  # type: ignore
        yield
    finally:
        cpp_extension.load, cpp_extension.load_inline, ctypes.CDLL = kept  # type: ignore[misc]
