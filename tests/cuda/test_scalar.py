"""kernels/scalar.cuh on the device: accuracy in ulp, the contract, torch's special values.

The same loops as on the host (cpu/scalar_check.cpp), as kernels. Exponentials that enter bounded
functions are approximate: where their argument is large, and what is made of them small, they err
by a few ulp more than CUDA's, which the contract does not see.
"""

import ctypes
import subprocess
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
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
    GELU_TANH,
    LOG,
    LOG1P,
    LOG2,
    LOG_SIGMOID,
    MISH,
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
    rms,
)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

TESTS = Path(__file__).parents[1]
SOURCE = TESTS / "cpu" / "scalar_check.cpp"
KERNELS = TESTS.parent / "src" / "kernelwright" / "kernels"

# Measured on an H200, rounded up a little.
BOUNDS = [
    Bound(EXP, -87, 90, 2.0),
    Bound(EXP_BELOW, -1, 0, 4.0),
    Bound(EXP_BELOW, -87, -1, 64.0),
    Bound(EXPM1, -110, 90, 1.6),
    Bound(LOG, 0, 3.4e38, 1.0),
    Bound(LOG2, 0, 3.4e38, 2.2),
    Bound(LOG1P, -1, 3.4e38, 1.5),
    Bound(SIGMOID, -1, 3.4e38, 4.0),
    Bound(SIGMOID, -88.7, -1, 64.0),
    Bound(LOG_SIGMOID, -3.4e38, 1, 4.0),
    Bound(LOG_SIGMOID, 1, 87, 64.0),
    Bound(TANH, -3.4e38, 3.4e38, 3.0),
    Bound(ERF, -3.4e38, 3.4e38, 2.0),
    Bound(SILU, -1, 3.4e38, 5.0),
    Bound(SILU, -88.7, -1, 64.0),
    Bound(MISH, -1, 3.4e38, 7.0),
    Bound(MISH, -87, -1, 64.0),
    Bound(GELU, -1, 3.4e38, 7.0),
    Bound(GELU_TANH, -1, 3.4e38, 7.0),
    Bound(SOFTPLUS, -1, 3.4e38, 4.0),
    Bound(SOFTPLUS, -87, -1, 64.0),
    Bound(ELU, -3.4e38, 3.4e38, 6.0),
    Bound(SELU, -3.4e38, 3.2e38, 7.0),
    Bound(CELU, -3.4e38, 3.4e38, 7.0),
    Bound(Op("sqrt", torch.sqrt), 0, 3.4e38, 0.5),
    Bound(Op("rsqrt", torch.rsqrt), 1e-37, 3.4e38, 2.0),
    Bound(Op("reciprocal", torch.reciprocal), -8e37, 8e37, 1.0),
    Bound(Op("softsign", F.softsign), -3.4e38, 3.4e38, 3.0),
    Bound(Op("hardswish", F.hardswish), -2.9, 5e37, 2.5),
]
CONTRACT = [
    *(EXP, EXP_BELOW, EXPM1, SIGMOID, LOG_SIGMOID, TANH, ERF, SILU, MISH, GELU, GELU_TANH),
    *(SOFTPLUS, SOFTPLUS_STEEP, ELU, ELU_SCALED, SELU, CELU),
    Op("softsign", F.softsign),
    Op("hardsigmoid", F.hardsigmoid),
    Op("hardswish", F.hardswish),
]


class Library(Loops):
    device = "cuda"

    def __init__(self, path: Path) -> None:
        self.dll = ctypes.CDLL(str(path))

    def __call__(self, name: str, *args: torch.Tensor) -> torch.Tensor:
        given = [a.float().cuda().contiguous() for a in args]
        y = torch.full_like(given[0], float("nan"))
        torch.cuda.synchronize()
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in [*given, y]]
        getattr(self.dll, f"device_{name}")(*pointers, ctypes.c_long(y.numel()))
        torch.cuda.synchronize()
        return y.cpu()


@pytest.fixture(scope="session")
def lib(tmp_path_factory: pytest.TempPathFactory) -> Library:
    path = tmp_path_factory.mktemp("scalar") / "scalar.so"
    command = ["nvcc", "-std=c++17", "-O3", "-x", "cu", "-shared", "-Xcompiler", "-fPIC"]
    command += ["-arch=native", f"-I{KERNELS}", str(SOURCE), "-o", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Library(path)


@pytest.mark.parametrize("bound", BOUNDS, ids=str)
def test_error_within_ulp_bound(lib: Library, bound: Bound) -> None:
    lib.check_ulp(bound)


@pytest.mark.parametrize("spread", [0.1, 1.0, 6.0])
@pytest.mark.parametrize("op", CONTRACT, ids=str)
def test_contract_is_kept(lib: Library, op: Op, spread: float) -> None:
    """On what a layer gives, beside eager on the device."""
    x = spread * torch.randn(1 << 20, generator=torch.Generator().manual_seed(5))
    x = -x.abs() if op.name == "exp_below" else x
    exact = op.torch(x.double(), *op.params)
    ours = rms(lib.apply(op, x) - exact)
    bound = allowed(op, x.cuda(), exact.cuda()).cpu()
    print(f"{op} at {spread}: {ours / rms(exact):.1e}, allowed {bound / rms(exact):.1e}")
    assert ours <= bound


@pytest.mark.parametrize("op", EXACT, ids=str)
def test_exact_functions_equal_torch(lib: Library, op: Op) -> None:
    lib.check_exact(op)


@pytest.mark.parametrize("op", NEAR, ids=str)
def test_special_values_are_those_of_torch(lib: Library, op: Op) -> None:
    """Equal NaNs and infinities; finite values close, down to where a subnormal number is zero."""
    x = torch.tensor(SPECIAL)
    x = x[~(x > 0)] if op.name == "exp_below" else x
    lib.check_near(op, x, rtol=4e-6)


@pytest.mark.parametrize("name", SIGNED)
def test_sign_of_zero_is_kept(lib: Library, name: str) -> None:
    lib.check_sign_of_zero(name)


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_equal_torch(lib: Library, name: str) -> None:
    lib.check_pairs(name)
