"""What a call of a file for a GPU starts, found out here: its host program on kernels of straw.

The C++ that starts kernels is compiled for the host, with launchers that note what they are given.
Tensors lie on the CPU; what the library of torch does is done there.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import checking
import torch
from torch import Tensor

from kernelwright.emit.backward import BackwardWriter
from kernelwright.emit.forward import ForwardWriter
from kernelwright.emit.module import emit
from kernelwright.lower.steps import Launch, every
from kernelwright.pipeline import Compiled

KERNELS = Path(__file__).parents[1] / "src" / "kernelwright" / "kernels"
CXX = os.environ.get("CXX", "g++")
FLAGS = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-I{KERNELS}"]
NOTE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(ctypes.c_int64)
)
STREAM = 77
LAUNCHERS = """
using Note = int (*)(const char* name, void* const* tensors, const int64_t* numbers);
static Note note;
extern "C" void listen(Note listener) { note = listener; }
extern "C" const char* cuda_error_text(int code) { return code == 9 ? "nine" : "another"; }
"""


@dataclass(frozen=True)
class Started:
    """A kernel that was started: on which addresses, and with which sizes."""

    kernel: str
    places: tuple[int, ...]
    sizes: tuple[int, ...]


class Straw:
    """An emitted file with such launchers; `started` are those of the last call."""

    def __init__(self, compiled: Compiled, source: str, library: Path) -> None:
        self.compiled = compiled
        self.launches = {step.kernel: step for step in _launches(compiled)}
        self.started: list[Started] = []
        self.handed: list[list[Tensor]] = []
        self.fails = ""
        text = re.sub(
            r"device = \w+\.device$", 'device = torch.device("cpu", 0)', source, flags=re.M
        )
        with mock.patch.object(torch.cuda, "is_available", lambda: False):
            self.module: Any = types.ModuleType("emitted")
            exec(compile(text, "emitted", "exec"), vars(self.module))
        self.library = self.module._KW_KERNEL_LIBRARY
        self.library.compiled = ctypes.CDLL(str(library))
        self.listener = NOTE(self.note)

    def note(self, name: bytes, places: Any, numbers: Any) -> int:
        kernel = name.decode().removeprefix("launch_")
        step = self.launches[kernel]
        operands, sizes = len(step.reads) + len(step.writes), len(step.sizes)
        found = [int(numbers[i]) for i in range(sizes + 2)]
        assert found[sizes:] == [0, STREAM], "the device and the stream"
        addresses = tuple(int(places[i]) for i in range(operands))
        self.started.append(Started(kernel, addresses, tuple(found[:sizes])))
        return 9 if kernel == self.fails else 0

    @contextmanager
    def on_gpu(self, capability: tuple[int, int] = (9, 0)) -> Iterator[Any]:
        """As on such a GPU. What kernels are handed stays until the next time."""
        start = type(self.library).start

        def kept(function: str, device: Any, tensors: list[Any], *others: Any) -> None:
            self.handed.append([t for t in tensors if t is not None])
            start(self.library, function, device, tensors, *others)

        self.started, self.handed = [], []
        self.library.compiled.listen(self.listener)
        with (
            mock.patch.object(self.module, "_kw_capability", lambda d: capability, create=True),
            mock.patch.object(self.module, "_kw_processors", lambda d: 132, create=True),
            mock.patch.object(torch._C, "_cuda_getCurrentRawStream", lambda i: STREAM, create=True),
            mock.patch.object(self.library, "start", kept),
        ):
            yield self.module


def straws(compiled: Compiled, folder: Path) -> tuple[Straw, Straw]:
    """The file as it is, and with its kernels one by one."""
    library = build(compiled, folder)
    step = compiled.trained.step if compiled.trained else None
    writers = ForwardWriter, BackwardWriter
    with mock.patch.object(writers[0], "runs", None), mock.patch.object(writers[1], "runs", None):
        apart = emit(compiled.problem, compiled.planned, compiled.lowered, "", "cuda", step)
    return Straw(compiled, compiled.source, library), Straw(compiled, apart, library)


def _launches(compiled: Compiled) -> Iterator[Launch]:
    trained = compiled.trained.step.parts if compiled.trained else ()
    for lowered in (compiled.lowered, *(low for _, low in trained)):
        steps = [*lowered.steps, *(s for r in lowered.routines for s in r.steps)]
        yield from (step for step in every(steps) if isinstance(step, Launch))


def build(compiled: Compiled, folder: Path) -> Path:
    """The host program of a file, and launchers of straw."""
    programs = checking.programs(compiled)
    units = re.split(r"^// ---- A unit .*\n", programs, flags=re.MULTILINE)
    (host,) = (unit for unit in units if "watch_launches" in unit)
    names = dict.fromkeys(re.findall(r'^extern "C" int (\w+)\(.*\{$', programs, re.MULTILINE))
    launchers = [n for n in names if not n.startswith("run_")]
    straw = "\n".join(
        f'extern "C" int {name}(void* const* tensors, const int64_t* numbers) {{\n'
        f'  return note == nullptr ? 0 : note("{name}", tensors, numbers);\n}}'
        for name in launchers
    )
    source, library = folder / "host.cpp", folder / "host.so"
    source.write_text("\n".join(['#include "run.hpp"', LAUNCHERS, straw, host]))
    command = [CXX, *FLAGS, "-o", str(library), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return library
