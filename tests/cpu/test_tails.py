"""One printed program as a product's epilogue and as the kernel after the library's product.

The programs of an emitted CUDA file are plain C++: here a CPU compiler builds them with the CPU
templates, over in_memory.cuh, and they run on a product that is in memory.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import checking
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from written import planned

from kernelwright.emit.epilogue import EpiloguePrinter
from kernelwright.emit.tail import TailPrinter, tail_arguments
from kernelwright.lower import GemmKernel, TailKernel
from kernelwright.pipeline import Compiled

KERNELS = Path(__file__).parents[2] / "src" / "kernelwright" / "kernels"
CXX = os.environ.get("CXX", "g++")
FLAGS = ["-std=c++17", "-O1", "-fopenmp", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
HEADERS = "".join(
    f'#include "{name}"\n'
    for name in ("in_memory.cuh", "pointwise.hpp", "resident.hpp", "streaming.hpp")
)
# What is brought into a cache on a GPU.
TOUCH = "namespace kw { template <class T> void touch(const T*) {} }\n"
ROWS, COLUMNS = 30, 256

pytestmark = pytest.mark.skipif(
    shutil.which(CXX) is None, reason=f"the C++ compiler {CXX} is not here"
)

# Each with how its rows are grouped.
CASES: dict[str, tuple[Callable[..., Any], str]] = {
    "elements": (lambda self, x: F.mish(self.linear(x)), ""),
    "no bias": (lambda self, x: torch.relu(F.linear(x, self.linear.weight)), "Flat"),
    "a residual": (lambda self, x: torch.relu(self.linear(x)) + x, ""),
    "segments": (lambda self, x: F.hardtanh(self.norm(self.linear(x))), "Segments"),
    "rows": (lambda self, x: self.linear(x).amin(dim=1) * 3, ""),
    "segments and rows": (lambda self, x: self.norm(self.linear(x)).amin(1, keepdim=True), ""),
    "both": (lambda self, x: (lambda y: (y, y.amin(1)))(self.norm(self.linear(x))), ""),
    "logsumexp": (lambda self, x: torch.logsumexp(self.linear(x), 1), ""),
    "heads": (
        lambda self, x: torch.relu(self.linear(x)).view(-1, 8, 32).amax(-1),
        "Segments",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_epilogue_runs_over_memory(name: str, tmp_path: Path) -> None:
    function, grouping = CASES[name]
    parts = {"linear": nn.Linear(COLUMNS, COLUMNS), "norm": nn.GroupNorm(16, COLUMNS)}
    compiled = planned(function, ROWS, COLUMNS, **parts)
    (product,) = (k for k in compiled.kernels if isinstance(k, GemmKernel))
    (tail,) = (k for k in compiled.kernels if isinstance(k, TailKernel))
    assert tail.grouping == grouping
    assert compiled.source.count(f"struct {_camel(product.name)} {{") == 1
    assert f"struct {_camel(tail.name)} {{" not in compiled.source
    _check(compiled, product, tail, tmp_path)


def test_a_kernel_that_writes_a_transpose_walks_it() -> None:
    compiled = planned(lambda self, x: (self.linear(x) * 2).t().contiguous(), 30, 32,
                       linear=nn.Linear(32, 96))  # fmt: skip
    assert not any(isinstance(k, TailKernel) for k in compiled.kernels)


def test_products_of_other_depths_share_a_program() -> None:
    parts = {"wide": nn.Linear(64, 128), "deep": nn.Linear(128, 128)}
    compiled = planned(lambda self, x: torch.relu(self.deep(torch.relu(self.wide(x)))), 300, 64,
                       **parts)  # fmt: skip
    products = [k for k in compiled.kernels if isinstance(k, GemmKernel)]
    assert len(products) == 2
    owners = {compiled.lowered.programs[k.name] for k in compiled.kernels}
    assert len(owners) == 1
    structs = re.findall(r"^struct (\w+) \{$", checking.programs(compiled), re.M)
    assert len([name for name in structs if not name.endswith("Config")]) == 1


def _camel(name: str) -> str:
    return "".join(word[:1].upper() + word[1:] for word in name.split("_"))


def _check(compiled: Compiled, product: GemmKernel, tail: TailKernel, folder: Path) -> None:
    graph = compiled.planned.graph
    printer = TailPrinter(graph, tail, product.name)
    run = tail.program.count(tail.program.inner) if tail.program.stages else 0
    source = folder / "tail.cpp"
    source.write_text(
        f"{HEADERS}{TOUCH}{EpiloguePrinter(graph, product).print()}\n{printer.print()}\n"
        f"struct Lanes {{ static constexpr int kVec = 8; static constexpr int kRun = {run}; }};\n"
        'extern "C" void run(void* const* tensors, const int64_t* numbers) {\n'
        + "\n".join(tail_arguments(printer))
        + f"\n  (void)numbers;\n  kw::{tail.template.symbol}<{printer.struct}, Lanes>(a, 1);\n}}\n"
    )
    built = folder / "tail.so"
    command = [CXX, *FLAGS, f"-I{KERNELS}", str(source), "-o", str(built)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

    module, x = compiled.problem.module, torch.randn(ROWS, COLUMNS)
    with torch.no_grad():
        expected = module(x)
        known = {"x": x, **{n: module.get_parameter(t) for n, t in graph.targets.items()}}
        known[product.gemm.product] = F.linear(x, module.get_parameter("linear.weight"))
    results = {b.name: torch.empty([_size(d) for d in b.shape]) for b in tail.region.outputs}
    tensors = [known[n].contiguous() for n in tail.reads] + [results[n] for n in tail.writes]
    addresses = (ctypes.c_void_p * len(tensors))(*(t.data_ptr() for t in tensors))
    ctypes.CDLL(str(built)).run(addresses, (ctypes.c_int64 * 1)(ROWS))
    outputs: list[Tensor] = [expected] if isinstance(expected, Tensor) else list(expected)
    for got, wanted in zip(results.values(), outputs, strict=True):
        torch.testing.assert_close(got.reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-5)


def _size(dim: Any) -> int:
    return dim if isinstance(dim, int) else int(dim.subs({s: ROWS for s in dim.free_symbols}))
