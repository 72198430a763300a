"""The epilogues of generated convolutions, run here: emitted programs, compiled for the host.

A convolution's result is cut into slices of any box, each copied into a room that is otherwise full
of NaN, and handed to kw::ConvEpilogue as the kernel's main loop would. One thread has a row.
"""

from __future__ import annotations

import ctypes
import math
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import sympy
import torch
import torch.nn.functional as F
from program_interpreter import run_plan
from torch import Tensor

from kernelwright.emit.convolution import ConvPrinter
from kernelwright.emit.cpp import camel
from kernelwright.emit.launchers import arguments
from kernelwright.lower import ConvKernel
from kernelwright.lower.conv_choice import ONES, Needs
from kernelwright.lower.conv_shape import ConvConfig, Launch
from kernelwright.pipeline import Compiled
from kernelwright.plan import ConvForm, Program, Region
from kernelwright.plan.walks import Pool
from kernelwright.targets import ConvLoop

KERNELS = Path(__file__).parents[1] / "src" / "kernelwright" / "kernels"
CXX = os.environ.get("CXX", "g++")
FLAGS = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-fopenmp", "-shared", "-fPIC"]
THREADS = 8
NAMES = ("kTileChannels", "kTileD", "kTileH", "kTileW", "kTilePitch", "kEpilogueThreads")

DRIVER = """
#include "conv_epilogue.cuh"

#include <cmath>
#include <vector>

PROGRAM

struct Box {
CONSTANTS
};

// Every slice of a result [samples][channels][depth][height][width], whose extents are `all`.
extern "C" void run(void* const* tensors, const int64_t* numbers, const float* result,
                    const int64_t* all) {
ARGUMENTS
  std::vector<float> room(Box::kTileChannels * Box::kTilePitch), scales(Box::kTileChannels);
  for (int k = 0; k < Box::kTileChannels; ++k) scales[k] = std::ldexp(1.0f, k % 5 - 2);
  for (int64_t n = 0; n < all[0]; ++n)
  for (int64_t c = 0; c < all[1]; c += Box::kTileChannels)
  for (int64_t z = 0; z < all[2]; z += Box::kTileD)
  for (int64_t y = 0; y < all[3]; y += Box::kTileH)
  for (int64_t x = 0; x < all[4]; x += Box::kTileW) {
    for (float& f : room) f = NAN;
    for (int64_t k = 0; k < Box::kTileChannels && c + k < all[1]; ++k)
    for (int64_t l = 0; l < Box::kTileD && z + l < all[2]; ++l)
    for (int64_t j = 0; j < Box::kTileH && y + j < all[3]; ++j)
    for (int64_t i = 0; i < Box::kTileW && x + i < all[4]; ++i) {
      const int64_t plane = (n * all[1] + c + k) * all[2] + z + l;
      const float value = result[(plane * all[3] + y + j) * all[4] + x + i];
      const int64_t at = k * Box::kTilePitch + (l * Box::kTileH + j) * Box::kTileW + i;
      room[at] = Box::kUnscaled ? value / scales[k] : value;
    }
    const kw::ConvTile<Box> tile{room.data(), scales.data(), n, int(c), int(z), int(y), int(x), 1};
    for (int t = 0; t < Box::kEpilogueThreads; ++t) {
      kw::ConvEpilogue<STRUCT, Box>{a}.run(tile, t);
    }
  }
}
"""


def boxes(form: ConvForm, loop: ConvLoop, needs: Needs) -> list[ConvConfig]:
    """In the place of lower.conv.tiles: small tiles."""
    found = []
    for shape in ((1, 4, 8), (2, 4, 4), (1, 1, 16), (6, 6, 6)):
        box = [-(-n // m) * m for n, m in zip(shape, needs.multiple, strict=True)]
        channels = 8 * -(-needs.channels_together // 8)
        pitch = math.prod(box) + 4
        values = (channels, *box, pitch, THREADS)
        pooled = needs.pool is not None and needs.pool.window != ONES
        phases = form.transposed and max(form.stride) > 1
        constants = (*zip(NAMES, values, strict=True), ("kUnscaled", int(not phases)))
        constants += (("kPhaseMax", int(phases and pooled)), ("kPixelsOnM", 1))
        cost = 0.0 if pooled or form.mean else 1.0
        found.append(
            ConvConfig(*values, 1, constants, "small", Launch(loop.tiles, cost, 1, 1), 1, 1, 1)
        )
    return found


def driver(compiled: Compiled, kernel: ConvKernel) -> str:
    one = replace(kernel, laid=replace(kernel.laid, lanes=1, teams=1))
    printer = ConvPrinter(compiled.planned.graph, one)
    constants = kernel.tile.constants
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


def build(text: str, folder: Path, name: str) -> Any:
    source, library = folder / f"{name}.cpp", folder / f"{name}.so"
    source.write_text(text)
    command = [CXX, *FLAGS, f"-I{KERNELS}", str(source), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(library)).run


def pooled(results: Tensor, pool: Pool) -> Tensor:
    """The largest of each window; where it reaches beyond the results there is nothing."""
    ends = zip(pool.window, pool.step, pool.count, pool.before, results.shape[2:], strict=True)
    after = [(n - 1) * step + size - first - all for size, step, n, first, all in ends]
    around = [n for pair in zip(pool.before, after, strict=True) for n in reversed(pair)]
    filled = F.pad(results, around[::-1], value=-math.inf)
    return F.max_pool3d(filled, pool.window, pool.step)


def outputs_of(compiled: Compiled, inputs: tuple[Tensor, ...], folder: Path) -> Any:
    """What the plan gives when the tiles of its convolutions are run here."""
    kernels = {k.name: k for k in compiled.kernels if isinstance(k, ConvKernel)}
    names = compiled.lowered.shared

    def convolve(
        region: Region, value_of: Callable[[str], Any], values: dict[str, Any], number: Any
    ) -> Program | None:
        kernel, conv = kernels[names[region.name]], region.conv
        assert conv is not None and names[region.name] == region.name, "one kernel for each region"
        run = build(driver(compiled, kernel), folder, kernel.name)
        assert region.contraction is not None
        product = value_of(conv.product)
        space = product.shape[2 - len(region.contraction.right) :]
        product = product.reshape(-1, conv.form.cout, *(1,) * (3 - len(space)), *space)
        if kernel.form.mean is not None:
            product = F.avg_pool3d(product, kernel.form.mean.window)
        product = product.float()
        if kernel.largest.pool.window != ONES:
            signs = [value_of(s.buffer)[s.first :: s.step].flatten() for s in kernel.largest.signs]
            turned = [torch.ones(conv.form.cout), *(torch.where(s < 0, -1, 1) for s in signs)]
            turn = math.prod(turned[1:], start=turned[0]).reshape(1, -1, 1, 1, 1)
            product = pooled(product * turn, kernel.largest.pool) * turn
        product = product.contiguous()
        shapes = {b.name: b for b in (*region.outputs, *kernel.partials)}
        found = [value_of(name).contiguous() for name in kernel.reads]
        reads = [x if x.dtype is torch.bool else x.float() for x in found]
        made = {}
        for name in kernel.writes:
            shape = [number(d) for d in shapes[name].shape]
            made[name] = torch.full(shape, float("nan"))
        tensors = [*reads, *made.values()]
        addresses = (ctypes.c_void_p * len(tensors))(*(t.data_ptr() for t in tensors))
        symbols = compiled.planned.graph.symbols
        numbers = [number(sympy.Symbol(s, integer=True, positive=True)) for s in symbols]
        sizes = (ctypes.c_int64 * max(1, len(numbers)))(*numbers)
        run(
            addresses,
            sizes,
            ctypes.c_void_p(product.data_ptr()),
            (ctypes.c_int64 * 5)(*product.shape),
        )
        values.update({name: t.double() for name, t in made.items()})
        return kernel.tiled.finish

    module = compiled.problem.module
    return run_plan(compiled.planned, module, inputs, convolve=convolve)
