"""The compilers that an emitted file needs, looked for before the long work begins."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from kernelwright.errors import BuildError


def check_toolchain(device: str) -> None:
    """A C++ compiler, for a GPU nvcc as well, and ninja, which torch builds with."""
    compiler = os.environ.get("CXX") or "c++"
    if shutil.which(compiler) is None:
        raise BuildError(
            f"There is no C++ compiler to be run as {compiler}; install g++, or set CXX to one."
        )
    if device == "cuda" and not _has_nvcc():
        raise BuildError(
            "There is no nvcc, the CUDA compiler; install the CUDA toolkit, or set CUDA_HOME to it."
        )
    if not _has_ninja():
        raise BuildError("There is no ninja to build with; run `pip install ninja`.")


def _has_nvcc() -> bool:
    from torch.utils.cpp_extension import CUDA_HOME

    return shutil.which("nvcc") is not None or bool(
        CUDA_HOME and (Path(CUDA_HOME) / "bin" / "nvcc").exists()
    )


def _has_ninja() -> bool:
    from torch.utils.cpp_extension import is_ninja_available

    return bool(is_ninja_available())
