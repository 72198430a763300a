"""compute-sanitizer over every CUDA template and main loop, on sizes that no tile divides.

The program runs without it first: an illegal instruction or a hang is found in seconds.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "src" / "kernelwright" / "kernels"
CUDA = os.environ.get("CUDA_HOME", "/usr/local/cuda")
NVCC, SANITIZER = (
    shutil.which(tool) or os.path.join(CUDA, "bin", tool) for tool in ("nvcc", "compute-sanitizer")
)

pytestmark = [
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
        reason="the generated products need a Hopper GPU",
    ),
    pytest.mark.skipif(
        not (os.path.exists(NVCC) and os.path.exists(SANITIZER)),
        reason="nvcc or compute-sanitizer is not here",
    ),
]


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sanitized") / "sanitized"
    target = "-gencode=arch=compute_90a,code=sm_90a"
    command = [NVCC, target, "-std=c++17", "-O3", "-lineinfo", f"-I{KERNELS}", "-o", str(path)]
    done = subprocess.run(
        [*command, str(HERE / "sanitized.cu")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return path


@pytest.mark.parametrize("tool", ["plain", "memcheck", "racecheck", "initcheck"])
def test_clean(program: Path, tool: str) -> None:
    under = [] if tool == "plain" else [SANITIZER, "--tool", tool, "--error-exitcode", "7"]
    command = [*under, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout[-4000:]
    assert "0 failed" in done.stdout
