"""The loops over lanes in generated row kernels are vectorised: scalar code is ten times slower."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from checking import native_flags
from torch import nn

import kernelwright
from kernelwright.emit import library
from kernelwright.plan import ALWAYS

FLAGS = ["-std=c++17", "-O3", "-fopenmp", *native_flags(), "-w"]
FLAGS += ["-fno-math-errno", "-fno-trapping-math"]


class Softmax(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1)


class LogSoftmax(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(x, -1)


class NormGelu(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.layer_norm(x, x.shape[-1:]))


def is_gcc() -> bool:
    compiler = shutil.which("g++")
    if compiler is None:
        return False
    told = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    return "Free Software Foundation" in told.stdout


@pytest.mark.skipif(not is_gcc(), reason="there is no GCC here, which says what it vectorised")
@pytest.mark.parametrize("columns", [64, 512, 4096])
@pytest.mark.parametrize(
    ("model", "call"),
    [(Softmax, "kw::exp_below("), (LogSoftmax, "kw::exp_below("), (NormGelu, "kw::gelu(")],
)
def test_the_loop_with_the_function_is_vectorised(
    model: type[nn.Module], call: str, columns: int, tmp_path: Path
) -> None:
    text = kernelwright.explain(model(), (torch.randn(8, columns),), policy=ALWAYS).source
    kernels = library.headers(text) + library.programs(text)
    (tmp_path / "kernels.cpp").write_text(kernels)
    command = ["g++", *FLAGS, "-fopt-info-vec-optimized", "-c", "kernels.cpp", "-o", "kernels.o"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    vectorised = {
        int(n) for n in re.findall(r"^kernels\.cpp:(\d+):\d+: optimized", done.stderr, re.M)
    }
    lines = kernels.splitlines()
    uses = [i for i, line in enumerate(lines, 1) if call in line and "KW_FN" not in line]
    assert uses
    for use in uses:
        loop = next(i for i in range(use, 0, -1) if "for (int v = 0" in lines[i - 1])
        assert vectorised & set(range(loop, use + 1)), lines[use - 1]
