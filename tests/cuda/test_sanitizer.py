"""compute-sanitizer over every CUDA template and main loop, on sizes that no tile divides.

Each program runs without it first: an illegal instruction or a hang is found in seconds.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "src" / "kernelwright" / "kernels"
CUDA = os.environ.get("CUDA_HOME", "/usr/local/cuda")
NVCC, SANITIZER = (
    shutil.which(tool) or os.path.join(CUDA, "bin", tool) for tool in ("nvcc", "compute-sanitizer")
)
PROGRAMS = sorted(HERE.glob("sanitized_*.cu"))
SHOWN = 4000  # of what a tool says, first and last

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
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Path]:
    folder = tmp_path_factory.mktemp("sanitized")
    target = "-gencode=arch=compute_90a,code=sm_90a"
    flags = [target, "-std=c++17", "-O3", "-lineinfo", f"-I{KERNELS}"]

    def build(source: Path) -> tuple[Path, Path]:
        program = folder / source.stem
        command = [NVCC, *flags, "-o", str(program), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return source, program

    with ThreadPoolExecutor() as pool:
        return dict(pool.map(build, PROGRAMS))


@pytest.mark.parametrize("source", PROGRAMS, ids=lambda p: p.stem)
@pytest.mark.parametrize("tool", ["plain", "memcheck", "racecheck", "initcheck"])
def test_clean(programs: dict[Path, Path], source: Path, tool: str) -> None:
    under = [] if tool == "plain" else [SANITIZER, "--tool", tool, "--error-exitcode", "7"]
    command = [*under, str(programs[source])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    said = done.stdout
    if len(said) > 2 * SHOWN:
        said = f"{said[:SHOWN]}\n...\n{said[-SHOWN:]}"
    assert done.returncode == 0, said
