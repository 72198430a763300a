"""kernels/scalar.cuh on the host: accuracy in ulp, torch's special values, vectorisation.

scalar_check.cpp holds one loop per function; it is compiled once a session and called through
ctypes. References are torch in float64 for accuracy and torch in float32 for special values.
"""

import ctypes
import itertools
import math
import platform
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from kernelwright.expand.pointwise import SELU_ALPHA, SELU_SCALE

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "src" / "kernelwright" / "kernels"
SOURCE = HERE / "scalar_check.cpp"
NATIVE = "-mcpu=native" if platform.machine() == "aarch64" else "-march=native"
FLAGS = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-O3", NATIVE, f"-I{KERNELS}"]
FLAGS += ["-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared", "-fopt-info-vec"]

INF, NAN, SQRT_HALF = float("inf"), float("nan"), math.sqrt(0.5)
SPECIAL = [
    0.0,
    1e-45,
    1e-40,
    1e-30,
    1e-8,
    0.3,
    0.5,
    1.0,
    1.5,
    2.5,
    3.0,
    6.0,
    10.0,
    20.0,
    20.5,
    50.0,
]
SPECIAL += [87.0, 88.7, 88.8, 89.5, 103.0, 104.0, 110.0, 8388609.0, 1e10, 1e20, 1e30, 1e38, INF]
SPECIAL = [NAN, *SPECIAL, *(-x for x in SPECIAL)]

Fn = Callable[..., torch.Tensor]


class Op(NamedTuple):
    """A function of the header beside torch's: both take x, then the scalar parameters."""

    name: str
    torch: Fn
    params: tuple[float, ...] = ()

    def __str__(self) -> str:
        return "-".join([self.name, *map(str, self.params)])


class Bound(NamedTuple):
    """The largest error measured on some 20 million floats of [low, high], rounded up a little.

    Measured on AArch64, and on x86 with and without a fused multiply-add (without: expm1 1.52 in
    place of 1.38, log2 2.15 in place of 1.68).
    """

    op: Op
    low: float
    high: float
    ulp: float

    def __str__(self) -> str:
        return f"{self.op}[{self.low:g},{self.high:g}]"


def gelu(x: torch.Tensor) -> torch.Tensor:
    """In float64 without the cancellation in 1 + erf, so that it is a reference for all x.

    In float32 the formula rather than F.gelu, which through oneDNN on x86 is NaN at infinity.
    """
    if x.dtype == torch.float32:
        return x * 0.5 * (1 + torch.erf(x * SQRT_HALF))
    return x * 0.5 * torch.special.erfc(-x * SQRT_HALF)


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    if x.dtype == torch.float32:
        return F.gelu(x, approximate="tanh")
    return x * torch.sigmoid((8 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))


def elu(x: torch.Tensor, alpha: float, scale: float, input_scale: float) -> torch.Tensor:
    y: torch.Tensor = torch.ops.aten.elu(x, alpha, scale, input_scale)
    return y


EXP, EXPM1 = Op("exp", torch.exp), Op("expm1", torch.expm1)
LOG, LOG2, LOG1P = Op("log", torch.log), Op("log2", torch.log2), Op("log1p", torch.log1p)
SIGMOID, LOG_SIGMOID = Op("sigmoid", torch.sigmoid), Op("log_sigmoid", F.logsigmoid)
TANH, ERF = Op("tanh", torch.tanh), Op("erf", torch.erf)
SILU, MISH = Op("silu", F.silu), Op("mish", F.mish)
GELU, GELU_TANH = Op("gelu", gelu), Op("gelu_tanh", gelu_tanh)
SOFTPLUS = Op("softplus", F.softplus, (1.0, 20.0))

# In their tails gelu_tanh, and softplus with a beta, carry the rounding of exp's argument, as eager
# does.
BOUNDS = [
    Bound(EXP, -110, 90, 1.0),
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
    Bound(GELU, -12.9, 3.4e38, 6.3),
    Bound(GELU_TANH, -2, 3.4e38, 7.0),
    Bound(GELU_TANH, -10, -2, 220.0),
    Bound(SOFTPLUS, -110, 3.4e38, 1.9),
    Bound(Op("softplus", F.softplus, (2.5, 15.0)), -2, 3.4e38, 6.2),
    Bound(Op("elu", elu, (1.0, 1.0, 1.0)), -3.4e38, 3.4e38, 1.1),
    Bound(Op("elu", elu, (1.5, 0.7, 1.3)), -3.4e38, 3.4e38, 3.3),
    Bound(Op("elu", elu, (SELU_ALPHA, SELU_SCALE, 1.0)), -3.4e38, 3.2e38, 2.6),
    Bound(Op("elu", elu, (0.75, 1.0, 1 / 0.75)), -3.4e38, 3.4e38, 2.4),
    Bound(Op("sqrt", torch.sqrt), 0, 3.4e38, 0.5),
    Bound(Op("rsqrt", torch.rsqrt), 0, 3.4e38, 1.5),
    Bound(Op("reciprocal", torch.reciprocal), -8e37, 8e37, 0.5),
    Bound(Op("softsign", F.softsign), -3.4e38, 3.4e38, 1.5),
    Bound(Op("hardswish", F.hardswish), -2.9, 5e37, 2.0),
]

EXACT = [
    Op("abs", torch.abs),
    Op("sign", torch.sign),
    Op("square", torch.square),
    Op("floor", torch.floor),
    Op("ceil", torch.ceil),
    Op("round", torch.round),
    Op("trunc", torch.trunc),
    Op("finite_or_zero", lambda x: torch.where(torch.isinf(x), 0, x)),
    Op("relu", F.relu),
    Op("relu6", F.relu6),
    *(Op("leaky_relu", F.leaky_relu, (slope,)) for slope in (0.01, -1.0, 0.0)),
    *(Op("clamp", torch.clamp, p) for p in ((-1.0, 1.0), (2.0, 1.0), (0.0, NAN), (NAN, 1.0))),
    Op("hardtanh", F.hardtanh, (-1.0, 1.0)),
]

NEAR = [
    *(bound.op for bound in BOUNDS),
    Op("hardsigmoid", F.hardsigmoid),
    Op("sin", torch.sin),
    Op("cos", torch.cos),
    *(Op("pow", torch.pow, (y,)) for y in (2.0, 3.0, -1.0, 0.0, 1.7, NAN)),
]

PAIRS: dict[str, Fn] = {
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "eq": torch.eq,
    "ne": torch.ne,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
}

VECTORISED = (
    "exp expm1 log log2 log1p tanh erf sigmoid log_sigmoid mish gelu gelu_tanh silu softplus"
)
VECTORISED += " elu leaky_relu relu clamp maximum minimum sqrt rsqrt floor round where"
VECTORISED += " hardswish softsign sign"


class Library(NamedTuple):
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

    def apply(self, op: Op, x: torch.Tensor) -> torch.Tensor:
        return self(op.name, x, *(torch.full_like(x, p) for p in op.params))


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


def samples(low: float, high: float, count: int = 1 << 19) -> torch.Tensor:
    """Floats of [low, high]: evenly spaced in value, in the bits, and in value around zero."""
    bits = np.linspace(0, 0x7F7FFFFF, count).astype(np.uint32).view(np.float32)
    x = np.concatenate(
        [np.linspace(low, high, count), bits, -bits, np.linspace(-20, 20, 4 * count + 1)]
    ).astype(np.float32)
    return torch.from_numpy(x[(x >= low) & (x <= high)])


def ulp_error(y: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    exponent = torch.frexp(exact).exponent.clamp_min(-125) - 24
    error = torch.ldexp((y.double() - exact).abs(), -exponent)
    overflow = exact.abs() >= 2.0**128 * (1 - 2.0**-25)
    return torch.where(overflow, torch.where(y == exact.sign() * INF, 0.0, INF), error)


def assert_same(y: torch.Tensor, expected: torch.Tensor, rtol: float, atol: float) -> None:
    expected = expected.to(y.dtype)
    torch.testing.assert_close(y, expected, rtol=rtol, atol=atol, equal_nan=True)


@pytest.mark.parametrize("bound", BOUNDS, ids=str)
def test_error_within_ulp_bound(lib: Library, bound: Bound) -> None:
    x = samples(bound.low, bound.high)
    exact = bound.op.torch(x.double(), *bound.op.params)
    error = ulp_error(lib.apply(bound.op, x), exact)
    worst = int(error.argmax())
    print(f"{bound}: {error[worst]:.2f} ulp at {x[worst]:.9g}")
    assert error[worst] <= bound.ulp, f"{error[worst]:.2f} ulp at x = {x[worst]:.9g}"


@pytest.mark.parametrize("bound", BOUNDS, ids=str)
def test_error_no_worse_than_eager(lib: Library, bound: Bound) -> None:
    """The contract of NUMERICS: twice eager's error against float64, plus a few eps of the rms."""
    low, high = max(bound.low, -30.0), min(bound.high, 30.0)
    x = torch.linspace(low + 1e-3, high - 1e-3, 1 << 18)
    exact = bound.op.torch(x.double(), *bound.op.params)
    eager = (bound.op.torch(x, *bound.op.params) - exact).square().mean().sqrt()
    ours = (lib.apply(bound.op, x) - exact).square().mean().sqrt()
    assert ours <= 2 * eager + 2**-23 * exact.square().mean().sqrt()


@pytest.mark.parametrize("op", EXACT, ids=str)
def test_exact_functions_equal_torch(lib: Library, op: Op) -> None:
    x = torch.cat([torch.tensor(SPECIAL), torch.linspace(-9, 9, 1001)])
    assert_same(lib.apply(op, x), op.torch(x, *op.params), rtol=0, atol=0)


@pytest.mark.parametrize("op", NEAR, ids=str)
def test_special_values_are_those_of_torch(lib: Library, op: Op) -> None:
    """Equal NaNs and infinities; finite values close, down to where eager flushes to zero."""
    x = torch.tensor(SPECIAL)
    assert_same(lib.apply(op, x), op.torch(x, *op.params), rtol=2e-6, atol=2e-7)


@pytest.mark.parametrize("name", ["expm1", "log1p", "tanh", "erf", "mish", "gelu", "silu", "round"])
def test_sign_of_zero_is_kept(lib: Library, name: str) -> None:
    assert torch.signbit(lib(name, torch.tensor([0.0, -0.0]))).tolist() == [False, True]


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_equal_torch(lib: Library, name: str) -> None:
    a, b = torch.tensor(list(itertools.product(SPECIAL, SPECIAL))).T.contiguous()
    assert_same(lib(name, a, b), PAIRS[name](a, b), rtol=0, atol=0)


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
