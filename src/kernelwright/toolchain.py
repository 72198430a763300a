"""The compilers that an emitted file needs, looked for before the long work begins."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from kernelwright.errors import BuildError


def check_toolchain(device: str) -> None:
    """A C++ compiler, for a GPU nvcc as well, and ninja, which torch builds with."""
    if compiler() is None:
        raise BuildError(
            f"There is no C++ compiler to be run as {compiler_name()}; "
            "install g++, or set CXX to one."
        )
    if device == "cuda" and nvcc() is None:
        raise BuildError(
            "There is no nvcc, the CUDA compiler; install the CUDA toolkit, or set CUDA_HOME to it."
        )
    if not _has_ninja():
        raise BuildError("There is no ninja to build with; run `pip install ninja`.")


def compiler_name() -> str:
    return os.environ.get("CXX") or "c++"


def compiler() -> str | None:
    """The path of the C++ compiler."""
    return shutil.which(compiler_name())


def nvcc() -> str | None:
    """The path of the CUDA compiler."""
    from torch.utils.cpp_extension import CUDA_HOME

    inside = Path(CUDA_HOME) / "bin" / "nvcc" if CUDA_HOME else None
    return str(inside) if inside and inside.exists() else shutil.which("nvcc")


def _has_ninja() -> bool:
    from torch.utils.cpp_extension import is_ninja_available

    return bool(is_ninja_available())
