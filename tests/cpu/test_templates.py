"""The CPU templates as real C++: each header alone, and all of them instantiated by check.cpp."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

KERNELS = Path(__file__).parents[2] / "src" / "kernelwright" / "kernels"
HEADERS = sorted(p.name for p in KERNELS.glob("*.[ch]*h*") if p.suffix in (".hpp", ".cuh"))
CUDA_ONLY = {p.name for p in KERNELS.glob("*.cuh") if "cuda_runtime.h" in p.read_text()}
WARPS = re.compile(r'"(reduce|hopper)\.cuh"')  # what these include is for the device alone
CUDA_ONLY |= {p.name for p in KERNELS.glob("*.cuh") if WARPS.search(p.read_text())}
CUDA_ONLY |= {p.name for p in KERNELS.glob("*conv*.cuh") if "conv_epilogue" not in p.name}
CXX = os.environ.get("CXX", "g++")
FLAGS = ["-std=c++17", "-O2", "-fopenmp", "-Wall", "-Wextra", "-Werror", "-fno-math-errno"]

pytestmark = pytest.mark.skipif(
    shutil.which(CXX) is None, reason=f"the C++ compiler {CXX} is not here"
)


def compile_cpp(source: Path) -> None:
    command = [CXX, *FLAGS, f"-I{KERNELS}", "-c", str(source), "-o", os.devnull]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_template_is_instantiated() -> None:
    compile_cpp(KERNELS / "check.cpp")


@pytest.mark.parametrize("header", [h for h in HEADERS if h not in CUDA_ONLY])
def test_header_stands_alone(header: str, tmp_path: Path) -> None:
    unit = tmp_path / "alone.cpp"
    unit.write_text(f'#include "{header}"\n')
    compile_cpp(unit)


@pytest.mark.parametrize("unit", ["check.cu", "check.cpp"])
def test_check_unit_names_every_template(unit: str) -> None:
    """A header with a launcher that no check unit includes would never be compiled as it stands."""
    text = (KERNELS / unit).read_text()
    suffix = ".cuh" if unit == "check.cu" else ".hpp"
    launcher = re.compile(r"^template <.*class P, class C>\n(?:cudaError_t|void) (\w+)\(", re.M)
    texts = [p.read_text() for p in KERNELS.glob(f"*{suffix}")]
    launchers = [name for header in texts for name in launcher.findall(header)]
    missing = [name for name in launchers if f"kw::{name}<" not in text]
    assert launchers and not missing


# What this machine has of what tiles are turned with, and the side of their blocks.
SETS = {"avx512f": 16, "avx2": 8, "sse2": 0, "asimd": 0}


def told_by_the_processor() -> set[str]:
    info = Path("/proc/cpuinfo")
    return set(info.read_text().split()) if info.exists() else set()


@pytest.mark.parametrize("name", SETS)
def test_tiles_turn_what_lies_across(name: str, tmp_path: Path) -> None:
    if name not in told_by_the_processor():
        pytest.skip(f"this processor has no {name}")
    program = tmp_path / "tiled"
    source = Path(__file__).with_name("tiled_check.cpp")
    chosen = [] if name == "asimd" else [f"-m{name}"]
    command = [CXX, *FLAGS, "-O3", *chosen, f"-I{KERNELS}", str(source), "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = subprocess.run([program], capture_output=True, text=True)
    assert told.stdout == f"0 of 94428 wrong, blocks of {SETS[name]}\n", told
