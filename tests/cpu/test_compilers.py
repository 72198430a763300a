"""Other compilers and another processor: all templates without a warning, and some of them run.

GCC 10 to 14 and clang, each for every instruction set that the kernels know, with OpenMP and
without; AArch64 by a cross compiler, whose programs run where there is an emulator.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kernelwright.emit.headers import flatten

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "src" / "kernelwright" / "kernels"
sys.path.insert(0, str(HERE.parents[1] / "benchmarks"))
from cpu_products import LAUNCHER  # noqa: E402

WARNINGS = ["-Wall", "-Wextra", "-Werror", "-fno-math-errno", "-fno-trapping-math"]
GCC = [f"g++-{version}" for version in range(10, 15)]
CLANG = ["clang++", *(f"clang++-{version}" for version in range(13, 20))]
CROSS = "aarch64-linux-gnu-g++"
SETS = {
    "plain": [],
    "AVX2": ["-march=haswell"],
    "AVX-512": ["-march=skylake-avx512"],
    "AMX": ["-march=sapphirerapids", "-mprefer-vector-width=512"],
}
# Pragmas that mean nothing leave names behind that nobody uses.
ALONE = ["-fopenmp-simd", "-Wno-unknown-pragmas", "-Wno-unused", "-Wno-unused-parameter"]
THREADS = {"OpenMP": ["-fopenmp"], "one thread": ALONE}


def found(compiler: str) -> str:
    path = shutil.which(compiler)
    if path is None:
        pytest.skip(f"the compiler {compiler} is not here")
    return path


def compiled(compiler: str, flags: list[str], source: Path, out: str = os.devnull) -> None:
    """A program, or, if nobody wants it, an object."""
    what = ["-c"] if out == os.devnull else []
    command = [compiler, "-std=c++17", *flags, f"-I{KERNELS}", *what, str(source), "-o", out]
    done = subprocess.run(command, capture_output=True, text=True)
    if "unknown value" in done.stderr or "bad value" in done.stderr:
        pytest.skip(f"{compiler} does not know {flags}")
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("instructions", SETS)
@pytest.mark.parametrize("compiler", [*GCC, *CLANG])
def test_every_template(compiler: str, instructions: str, threads: str) -> None:
    if platform.machine() != "x86_64":
        pytest.skip("the instruction sets are those of x86-64")
    flags = [*SETS[instructions], *WARNINGS, *THREADS[threads]]
    compiled(found(compiler), ["-O1", *flags], KERNELS / "check.cpp")


@pytest.mark.parametrize("threads", THREADS)
def test_every_template_for_aarch64(threads: str) -> None:
    compiled(found(CROSS), ["-O2", *WARNINGS, *THREADS[threads]], KERNELS / "check.cpp")


def product_check(folder: Path) -> Path:
    """All kernels of products, and a program that compares them with sums of whole numbers."""
    driver = (HERE / "product_check.cpp").read_text()
    source = folder / "product_check.cpp"
    source.write_text(flatten(["product.hpp"], LAUNCHER + driver, "cpu") + driver)
    return source


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("compiler", [*GCC, *CLANG, CROSS])
@pytest.mark.parametrize("program", ["product", "tiled"])
def test_programs_run(program: str, compiler: str, threads: str, tmp_path: Path) -> None:
    path, before = found(compiler), []
    if compiler == CROSS:
        before = [found("qemu-aarch64"), "-L", "/usr/aarch64-linux-gnu"]
    source = product_check(tmp_path) if program == "product" else HERE / "tiled_check.cpp"
    built = tmp_path / "program"
    flags = ["-march=armv8-a"] if compiler == CROSS else ["-march=native"]
    try_openmp(path, threads, tmp_path)
    compiled(path, ["-O2", *flags, *WARNINGS, *THREADS[threads]], source, str(built))
    done = subprocess.run([*before, str(built)], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split(" of ")[0]) == (0, "0"), done.stdout + done.stderr


def try_openmp(compiler: str, threads: str, folder: Path) -> None:
    """clang finds its library of OpenMP, or none."""
    command = [compiler, *THREADS[threads][:1], "-x", "c++", "-", "-o", str(folder / "empty")]
    if subprocess.run(command, input=b"int main() {}", capture_output=True).returncode:
        pytest.skip(f"{compiler} has no library of OpenMP here")
