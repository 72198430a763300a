"""The kernels of emitted files under the address and undefined-behaviour sanitizers.

In: tests that build and run kernels of every kind. They are run once more in a process of their
own, with a compiler that sanitizes what it compiles, and memory whose borders are watched: a tensor
is a block of its own then, and a kernel that reads or writes beside it ends the process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CXX = os.environ.get("CXX", "g++")
CHECKS = "-O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=all"
WRAPPER = '#!/bin/sh\nunset LD_PRELOAD\nexec {cxx} "$@" {checks}\n'
# By what its kernels are: a file of tests, and which of them.
RUNS = {
    "rows": ("test_fuzz.py", "random_models_are_right"),
    "rows that were wrong once": ("test_fuzz.py", "models_that_failed_once_are_right and 0"),
    "side by side": ("test_strided.py", ""),
    "across": ("test_channels_last.py", ""),
    "windows": ("test_windows.py", ""),
    "direct convolutions": ("test_direct.py", ""),
    "attention": ("test_attention.py", ""),
    "products": ("test_host_products.py", "a_model_launches_them"),
}
# One past the end of what it was given.
WRONG = """
import ctypes, subprocess, torch
text = 'extern "C" float last(const float* x, long n) {{ return x[n]; }}'
open("{folder}/wrong.cpp", "w").write(text)
command = ["{cxx}", "-shared", "-fPIC", "{folder}/wrong.cpp", "-o", "{folder}/wrong.so"]
subprocess.run(command, check=True)
x = torch.ones(1000)
ctypes.CDLL("{folder}/wrong.so").last(ctypes.c_void_p(x.data_ptr()), ctypes.c_long({n}))
"""


def runtime_of(library: str) -> str:
    """The path of one of the compiler's libraries."""
    asked = [CXX, f"-print-file-name={library}"]
    found = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    if not Path(found).is_absolute():
        pytest.skip(f"{CXX} has no {library} that a Python could be started with")
    return found


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """That of a process whose kernels are sanitized."""
    if shutil.which(CXX) is None:
        pytest.skip(f"the C++ compiler {CXX} is not here")
    # Its functions that throw are looked for at the start, before anybody has loaded them.
    runtime = [runtime_of("libasan.so"), runtime_of("libstdc++.so.6")]
    wrapper = tmp_path_factory.mktemp("sanitizing") / "c++"
    wrapper.write_text(WRAPPER.format(cxx=CXX, checks=CHECKS))
    wrapper.chmod(0o700)
    options = "detect_leaks=0:alloc_dealloc_mismatch=0:halt_on_error=1"
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    return {
        **{n: v for n, v in os.environ.items() if not n.startswith("PYTEST_")},
        "CXX": str(wrapper),
        "LD_PRELOAD": " ".join(runtime),
        "ASAN_OPTIONS": options,
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "2",
    }


def run(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], env=environment, cwd=ROOT, capture_output=True, text=True
    )


@pytest.mark.parametrize("kernels", RUNS)
def test_nothing_is_found(kernels: str, environment: dict[str, str], tmp_path: Path) -> None:
    file, chosen = RUNS[kernels]
    # What ends a process is not to be lost with what pytest has captured.
    command = ["-m", "pytest", "-q", "-x", "-s", "-p", "no:cacheprovider"]
    command.append(f"--basetemp={tmp_path / 'run'}")
    done = run([*command, f"tests/cpu/{file}", *(["-k", chosen] if chosen else [])], environment)
    said = done.stdout + done.stderr
    assert done.returncode == 0 and " passed" in said, said[-6000:]
    assert "Sanitizer" not in said and "runtime error" not in said, said[-6000:]


@pytest.mark.parametrize("wrong", [False, True])
def test_a_read_behind_a_tensor_is_found(
    wrong: bool, environment: dict[str, str], tmp_path: Path
) -> None:
    code = WRONG.format(folder=tmp_path, cxx=environment["CXX"], n=1000 if wrong else 999)
    done = run(["-c", code], environment)
    assert (done.returncode != 0) == wrong, done.stderr[-3000:]
    assert ("heap-buffer-overflow" in done.stderr) == wrong
