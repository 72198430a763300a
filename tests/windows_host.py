"""Kernels of windows that are taken together, run here: emitted programs, compiled for the host.

Every box of windows is run as one thread of the GPU would (kernels/boxes.cuh), one after the other.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sympy
import torch
from conv_host import build
from program_interpreter import run_plan
from torch import Tensor

from kernelwright.emit.cpp import camel
from kernelwright.emit.launchers import arguments
from kernelwright.emit.windows import WindowsPrinter
from kernelwright.lower import Kernel
from kernelwright.pipeline import Compiled
from kernelwright.plan import Region, element_type

DRIVER = """
#include "boxes.cuh"
#include "half.cuh"

PROGRAM

struct Config {
CONSTANTS
};

extern "C" void run(void* const* tensors, const int64_t* numbers) {
ARGUMENTS
  using Box = kw::Box<STRUCT>;
  const int64_t threads = STRUCT::rows(a) / Box::kRows * Box::kTiles;
  for (int64_t t = 0; t < threads; ++t) {
    kw::Windows<uint32_t, STRUCT, Config>(a, static_cast<uint32_t>(t)).run();
  }
}
"""


def driver(compiled: Compiled, kernel: Kernel) -> str:
    printer = WindowsPrinter(compiled.planned.graph, kernel)
    constants = kernel.config.constants
    texts = {
        "PROGRAM": printer.print(),
        "CONSTANTS": "\n".join(f"  static constexpr int {k} = {v};" for k, v in constants),
        "ARGUMENTS": "\n".join(arguments(printer)),
        "STRUCT": camel(kernel.name),
    }
    text = DRIVER
    for word, own in texts.items():
        text = text.replace(word, own)
    return text


def outputs_of(compiled: Compiled, inputs: tuple[Tensor, ...], folder: Path) -> Any:
    """What the plan gives when its kernels of windows are run here."""
    kernels = {k.name: k for k in compiled.kernels if k.template.symbol == "windows"}
    names = compiled.lowered.shared
    graph = compiled.planned.graph

    def instead(
        region: Region, value_of: Callable[[str], Any], values: dict[str, Any], number: Any
    ) -> bool:
        kernel = kernels.get(names.get(region.name, ""))
        if kernel is None:
            return False
        run = build(driver(compiled, kernel), folder, kernel.name)
        made = {
            b.name: torch.full([number(d) for d in b.shape], float("nan"), dtype=b.dtype)
            for b in region.outputs
        }
        reads = [value_of(n).to(element_type(graph, n)).contiguous() for n in kernel.reads]
        tensors = [*reads, *(made[n] for n in kernel.writes)]
        addresses = (ctypes.c_void_p * len(tensors))(*(t.data_ptr() for t in tensors))
        symbols = (sympy.Symbol(s, integer=True, positive=True) for s in graph.symbols)
        numbers = [number(s) for s in symbols]
        run(addresses, (ctypes.c_int64 * max(1, len(numbers)))(*numbers))
        values.update({name: t.double() for name, t in made.items()})
        return True

    return run_plan(compiled.planned, compiled.problem.module, inputs, instead=instead)
