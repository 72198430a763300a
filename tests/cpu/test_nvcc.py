"""All CUDA that the zoo and the examples emit, compiled for sm_90a without a warning.

Programs of several models share one translation unit, each in a namespace, because the compiler's
start costs more than a kernel. No GPU is needed. Every template is compiled for sm_80 too, and so
are some of the programs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import adjoints
import checking
import pytest
from handmade import Kernel

from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.plan import ALWAYS
from kernelwright.problem import load_problem

KERNELS = Path(__file__).parents[2] / "src" / "kernelwright" / "kernels"
NVCC = shutil.which("nvcc") or os.path.join(
    os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", "nvcc"
)
FOR_SM_80 = ["-gencode=arch=compute_80,code=sm_80"]
FOR_SM_90 = ["-gencode=arch=compute_90a,code=sm_90a"]
FLAGS = [
    "-std=c++17", "-O3", "-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra,-Werror",
    "-Xptxas", "-v", "-c", "-o", os.devnull,
]  # fmt: skip
TO_PTX = ["-std=c++17", "-arch=sm_90a", "-Werror", "all-warnings", f"-I{KERNELS}", "-ptx"]
TO_PTX += ["-o", os.devnull]
# Nine convolutions take as long as all other models together, and CHAINS has such ones.
MODELS = [p for p in checking.MODELS if p.stem != "averages_of_convolutions"]
MODELS += checking.EXAMPLES
GROUPS = 24
# conv.cu is written for each shape in turn, and needs one; so does products.cu.
ON_A_GPU = sorted((Path(__file__).parents[1] / "cuda").glob("[!c]*.cu"))
MACROS = {"products": Kernel("SplitFloat", 256).macros}
CORPUS = Path(__file__).parents[2] / "benchmarks" / "corpus"
CHAINS = (
    "conv2d_dropout_relu_max_pool",  # reads the mask of a dropout
    "conv2d_average_pool_elu",  # these four have means of results
    "conv2d_relu_conv2d_average_pool",
    "conv_transpose2d_average_pool_selu",
    "conv_transpose3d_average_pool_tanh_min_channels",
)
# Rows of segments bound their registers for the sake of occupancy; a register or four may not fit.
FEW_BYTES = 40
SPILL = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")

pytestmark = [
    pytest.mark.nvcc,
    pytest.mark.skipif(not os.path.exists(NVCC), reason="nvcc, the CUDA compiler, is not here"),
]


def compile_cuda(source: Path, flags: Sequence[str] = (*FLAGS, *FOR_SM_90)) -> str:
    """The report of ptxas; a warning fails the test with the compiler's own text."""
    done = subprocess.run([NVCC, *flags, str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr


def check_registers(report: str) -> None:
    spills = SPILL.findall(report)
    assert spills, "ptxas reported no kernel"
    assert all(
        int(stored) <= FEW_BYTES and int(loaded) <= FEW_BYTES for stored, loaded in spills
    ), report


def reduced(path: Path, folder: Path) -> Path:
    return checking.reduced_example(path, folder) if path.name == "model.py" else path


def in_namespace(compiled: Compiled, name: str) -> tuple[list[str], str]:
    """The system headers, and the whole of an emitted text behind them inside a namespace."""
    text = checking.kernel_text(compiled).replace('extern "C" ', "")
    includes = re.findall(r"^#include <.*>$", text, re.MULTILINE)
    inside = re.sub(r"^#include <.*>$", "", text, flags=re.MULTILINE)
    return includes, f"namespace {name} {{\n{inside}\n}}  // namespace {name}\n"


@pytest.mark.parametrize("group", range(GROUPS))
def test_zoo(group: int, tmp_path: Path) -> None:
    includes: dict[str, None] = {}
    parts = []
    for path in MODELS[group::GROUPS]:
        problem = load_problem(reduced(path, tmp_path), "cpu")
        compiled = compile_problem(problem, target="cuda", policy=ALWAYS)
        found, text = in_namespace(compiled, f"emitted_{checking.name_of(path)}")
        includes |= dict.fromkeys(found)
        parts.append(text)
    unit = tmp_path / "zoo.cu"
    unit.write_text("\n".join([*includes, *parts]))
    targets = [*FOR_SM_90, *(FOR_SM_80 if group % 6 == 0 else [])]
    check_registers(compile_cuda(unit, [*FLAGS, *targets]))


@pytest.mark.parametrize("path", checking.EXAMPLES, ids=checking.name_of)
def test_example_at_its_own_size(path: Path, tmp_path: Path, full_size: Compiled) -> None:
    """The whole text as emitted, for the shapes that are benchmarked."""
    unit = tmp_path / "kernels.cu"
    unit.write_text(checking.kernel_text(full_size))
    check_registers(compile_cuda(unit))


@pytest.fixture
def full_size(path: Path, tmp_path: Path) -> Compiled:
    """The example as it stands, but traced with a batch of two: weights alone take the memory."""
    copy = tmp_path / f"{path.parent.name}.py"
    copy.write_text(path.read_text().replace("batch_size = 1024", "batch_size = 2"))
    return compile_problem(load_problem(copy, "cpu"), target="cuda", policy=ALWAYS)


@pytest.mark.parametrize("chain", CHAINS)
def test_a_convolution_at_its_own_size(chain: str, tmp_path: Path) -> None:
    compiled = compile_problem(load_problem(CORPUS / f"{chain}.py", "cpu"), target="sm_90")
    source = tmp_path / "chain.cu"
    source.write_text(checking.kernel_text(compiled))
    check_registers(compile_cuda(source))


def test_gradients(tmp_path: Path) -> None:
    """One of each kind: rows, columns, windows that reach a place, integers that are compared."""
    kinds = ("gelu_backward", "mish", "layer_norm", "group_norm", "_log_soft", "nll_loss", "max_p")
    cases = [c for family in adjoints.FAMILIES.values() for c in family]
    chosen = tuple(next(c for c in cases if c.name.startswith(kind)) for kind in kinds)
    compiled = adjoints.compiled(adjoints.Calls(chosen), "sm_90")
    source = tmp_path / "gradients.cu"
    source.write_text(checking.kernel_text(compiled))
    check_registers(compile_cuda(source))


def test_every_template_is_instantiated() -> None:
    check_registers(compile_cuda(KERNELS / "check.cu"))


def test_every_template_before_hopper() -> None:
    check_registers(compile_cuda(KERNELS / "check.cu", [*FLAGS, *FOR_SM_80]))


@pytest.mark.parametrize("header", sorted(p.name for p in KERNELS.glob("*.cuh")))
def test_header_stands_alone(header: str, tmp_path: Path) -> None:
    """All of its code is read on the way to PTX; the host compiler has it in other tests."""
    unit = tmp_path / "alone.cu"
    unit.write_text(f'#include "{header}"\n')
    compile_cuda(unit, TO_PTX)


@pytest.mark.parametrize("source", ON_A_GPU, ids=lambda p: p.stem)
def test_programs_of_the_gpu_tests(source: Path) -> None:
    """They run on a GPU alone, and would be found broken there; PTX is enough to see that."""
    macros = [f"-D{name}={value}" for name, value in MACROS.get(source.stem, {}).items()]
    compile_cuda(source, [*TO_PTX, *macros])
