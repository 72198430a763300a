"""kernels/scalar.cuh on the host: accuracy in ulp, torch's special values, vectorisation.

scalar_check.cpp holds one loop per function; it is compiled once a session and called through
ctypes. References are torch in float64 for accuracy and torch in float32 for special values.
"""

import ctypes
import itertools
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from checking import native_flags
from scalar_functions import (
    CELU,
    ELU,
    ELU_SCALED,
    ERF,
    EXACT,
    EXP,
    EXP_BELOW,
    EXPM1,
    GELU,
    GELU_SLOPE,
    GELU_TANH,
    INF,
    LOG,
    LOG1P,
    LOG2,
    LOG_SIGMOID,
    MISH,
    MISH_SLOPE,
    NAN,
    NEAR,
    PAIRS,
    SELU,
    SIGMOID,
    SIGNED,
    SILU,
    SOFTPLUS,
    SOFTPLUS_STEEP,
    SPECIAL,
    TANH,
    Bound,
    Loops,
    Op,
    allowed,
    assert_same,
    rms,
)

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "src" / "kernelwright" / "kernels"
SOURCE = HERE / "scalar_check.cpp"
FLAGS = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-O3", *native_flags(), f"-I{KERNELS}"]
FLAGS += ["-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared", "-fopt-info-vec"]

# Measured on some 20 million floats each, rounded up a little: on AArch64, and on x86 with and
# without a fused multiply-add (without: expm1 1.52 in place of 1.38, log2 2.15 in place of 1.68).
# In its tail gelu is held to what matters beside its other values (eager has none of these bits);
# there gelu_tanh, and softplus with a beta, carry the rounding of exp's argument, as eager
# does.
BOUNDS = [
    Bound(EXP, -110, 90, 1.0),
    Bound(EXP_BELOW, -110, 90, 1.0),
    Bound(EXPM1, -110, 90, 1.6),
    Bound(LOG, 0, 3.4e38, 1.0),
    Bound(LOG2, 0, 3.4e38, 2.2),
    Bound(LOG1P, -1, 3.4e38, 1.5),
    Bound(SIGMOID, -110, 110, 2.0),
    Bound(LOG_SIGMOID, -3.4e38, 110, 1.9),
    Bound(TANH, -3.4e38, 3.4e38, 1.5),
    Bound(ERF, -3.4e38, 3.4e38, 1.3),
    Bound(SILU, -87, 3.4e38, 3.4),
    Bound(MISH, -87, 3.4e38, 4.7),
    Bound(GELU, -1, 3.4e38, 3.3),
    Bound(GELU, -3, -1, 16.0),
    Bound(GELU, -5, -3, 700.0),
    Bound(GELU_TANH, -2, 3.4e38, 7.0),
    Bound(GELU_TANH, -10, -2, 220.0),
    Bound(GELU_SLOPE, -0.5, 3.4e38, 4.5),
    Bound(MISH_SLOPE, -0.9, 3.4e38, 9.5),
    Bound(MISH_SLOPE, -80, -2, 40.0),
    Bound(SOFTPLUS, -110, 3.4e38, 1.9),
    Bound(SOFTPLUS_STEEP, -2, 3.4e38, 6.2),
    Bound(ELU, -3.4e38, 3.4e38, 1.1),
    Bound(ELU_SCALED, -3.4e38, 3.4e38, 3.3),
    Bound(SELU, -3.4e38, 3.2e38, 2.6),
    Bound(CELU, -3.4e38, 3.4e38, 2.4),
    Bound(Op("sqrt", torch.sqrt), 0, 3.4e38, 0.5),
    Bound(Op("rsqrt", torch.rsqrt), 0, 3.4e38, 1.5),
    Bound(Op("reciprocal", torch.reciprocal), -8e37, 8e37, 0.5),
    Bound(Op("softsign", F.softsign), -3.4e38, 3.4e38, 1.5),
    Bound(Op("hardswish", F.hardswish), -2.9, 5e37, 2.0),
]

VECTORISED = "exp expm1 log log2 log1p tanh erf sigmoid log_sigmoid mish gelu gelu_tanh"
VECTORISED += (
    " silu softplus elu leaky_relu relu clamp maximum minimum sqrt rsqrt floor round where"
)
VECTORISED += " hardswish softsign sign gelu_slope mish_slope"


@dataclass
class Library(Loops):
    dll: ctypes.CDLL
    vectorised: frozenset[str]

    def __call__(self, name: str, *args: torch.Tensor) -> torch.Tensor:
        n = args[0].numel()
        size = -(-n // 16) * 16
        padded = [torch.cat([a.float(), a.new_zeros(size - n)]).contiguous() for a in args]
        y = torch.empty(size)
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in [*padded, y]]
        getattr(self.dll, f"kw_{name}")(*pointers, ctypes.c_long(size))
        return y[:n]


@pytest.fixture(scope="session")
def lib(tmp_path_factory: pytest.TempPathFactory) -> Library:
    path = tmp_path_factory.mktemp("scalar") / "scalar.so"
    command = ["g++", *FLAGS, str(SOURCE), "-o", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = SOURCE.read_text().splitlines()
    hits = re.findall(r"scalar_check\.cpp:(\d+):.*vectorized", done.stderr)
    names = (re.fullmatch(r"\w+\((\w+)\)", lines[int(hit) - 1]) for hit in hits)
    return Library(ctypes.CDLL(str(path)), frozenset(m[1] for m in names if m))


@pytest.mark.parametrize("bound", BOUNDS, ids=str)
def test_error_within_ulp_bound(lib: Library, bound: Bound) -> None:
    lib.check_ulp(bound)


@pytest.mark.parametrize("bound", BOUNDS, ids=str)
def test_error_no_worse_than_eager(lib: Library, bound: Bound) -> None:
    low, high = max(bound.low, -30.0), min(bound.high, 30.0)
    x = torch.linspace(low + 1e-3, high - 1e-3, 1 << 18)
    exact = bound.op.torch(x.double(), *bound.op.params)
    assert rms(lib.apply(bound.op, x) - exact) <= allowed(bound.op, x, exact)


@pytest.mark.parametrize("op", EXACT, ids=str)
def test_exact_functions_equal_torch(lib: Library, op: Op) -> None:
    lib.check_exact(op)


@pytest.mark.parametrize("op", NEAR, ids=str)
def test_special_values_are_those_of_torch(lib: Library, op: Op) -> None:
    """Equal NaNs and infinities; finite values close, down to where eager flushes to zero."""
    lib.check_near(op, torch.tensor(SPECIAL), rtol=2e-6)


@pytest.mark.parametrize("name", SIGNED)
def test_sign_of_zero_is_kept(lib: Library, name: str) -> None:
    lib.check_sign_of_zero(name)


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_equal_torch(lib: Library, name: str) -> None:
    lib.check_pairs(name)


def test_where_takes_any_number_but_zero_for_true(lib: Library) -> None:
    c, a, b = torch.tensor(list(itertools.product([0.0, -0.0, 1.0, NAN], [2.0, INF], [3.0, NAN]))).T
    assert_same(lib("where", c, a, b), torch.where(c != 0, a, b), rtol=0, atol=0)


@pytest.mark.parametrize("name", VECTORISED.split())
def test_loop_is_vectorised(lib: Library, name: str) -> None:
    assert name in lib.vectorised


@pytest.mark.nvcc
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("arch", ["80", "90a"])
def test_compiles_for_the_device(arch: str, tmp_path: Path) -> None:
    command = ["nvcc", "-std=c++17", "-x", "cu", "-c", str(SOURCE), "-o", str(tmp_path / "out.o")]
    command += [f"-gencode=arch=compute_{arch},code=sm_{arch}", f"-I{KERNELS}"]
    command += ["-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
