"""Errors of compilers, led back to the Python file that holds the text of the unit."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from kernelwright.errors import BuildError
from kernelwright.positions import in_file
from kernelwright.verify.candidate import candidate_class

FILE = """
import torch

HEADERS = r'''
template <class T>
T twice(T x) {
  return x + x;
}
'''

PROGRAMS = r'''
float first(float x) {
  return x + missing;
}
// ---- cut
float second(float x) {
  const float y = twice(x);
  return x + missing;
}
float third(float x) {
  return only_here(x);
}
'''
"""
LINE = {text: number for number, text in enumerate(FILE.splitlines(), 1)}


def unit() -> str:
    """As an emitted file puts it together: the headers, and the programs behind the cut."""
    parts = FILE.split("r'''\n")
    return parts[1].split("'''")[0] + parts[2].split("// ---- cut\n")[1].split("'''")[0]


def test_the_compiler_s_own_lines_stay(tmp_path: Path) -> None:
    """Really compiled: `missing` occurs twice in the file, and the unit has the second of them."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler here")
    path = tmp_path / "unit_0.cpp"
    path.write_text(unit())
    done = subprocess.run([compiler, "-c", path.name], cwd=tmp_path, capture_output=True, text=True)
    told = in_file(f"Error building extension\n{done.stderr}", "model_new.py", FILE)
    assert told is not None
    lines = told.splitlines()
    second = FILE.splitlines().index("  const float y = twice(x);") + 2
    assert lines[0].startswith(f"model_new.py:{second}: error: ")
    assert lines[1].startswith("  unit_0.cpp:7:14: error: ") and "missing" in lines[2]
    assert any(
        line.startswith(f"model_new.py:{LINE['  return only_here(x);']}: ") for line in lines
    )
    own = [line.removeprefix("  ") for line in lines if not line.startswith("model_new.py")]
    assert set(own) <= set(done.stderr.splitlines())


def test_nvcc_writes_lines_in_parentheses() -> None:
    said = (
        '/tmp/kw_1/cuda.cu(10): error: identifier "only_here" is undefined\n'
        "    return only_here(x);\n           ^\n\n1 error detected in the compilation.\n"
    )
    told = in_file(said, "model_new.py", FILE)
    assert told is not None
    assert told.splitlines()[0] == (
        f'model_new.py:{LINE["  return only_here(x);"]}: error: identifier "only_here" is undefined'
    )
    assert "cuda.cu(10)" in told


@pytest.mark.parametrize(
    "said",
    [
        "ninja: error: loading build.ninja",
        "/usr/include/stdio.h:30:1: error: unknown type\n   30 | FILE *f;\n      | ^",
        "c++: fatal error: no input files",
        "",
    ],
)
def test_errors_elsewhere_have_no_line_here(said: str) -> None:
    assert in_file(said, "model_new.py", FILE) is None


def test_a_candidate_that_cannot_be_built_is_told_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "candidate.py"
    path.write_text(
        "from torch.utils.cpp_extension import load_inline\n"
        "SOURCE = r'''\n"
        'extern "C" int one() { return 1; }\n'
        'extern "C" int two() { return nothing; }\n'
        "'''\n"
        "load_inline(name='positions', cpp_sources=[SOURCE], is_python_module=False,\n"
        f"    build_directory={str(tmp_path)!r}, no_implicit_headers=True)\n"
    )
    if shutil.which("c++") is None:
        pytest.skip("there is no C++ compiler here")
    with pytest.raises(BuildError) as caught:
        candidate_class(path)
    assert f"{path} could not be built: {path}:4: error: " in str(caught.value)
    assert "main.cpp:" in str(caught.value)
