"""The functions of kernels/scalar.cuh beside torch's: what both their tests ask of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from kernelwright.expand.pointwise import SELU_ALPHA, SELU_SCALE

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
    """The largest error on [low, high]."""

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


def gelu_slope(x: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor = torch.ops.aten.gelu_backward(torch.ones_like(x), x)
    return y


def mish_slope(x: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor = torch.ops.aten.mish_backward(torch.ones_like(x), x)
    return y


def elu(x: torch.Tensor, alpha: float, scale: float, input_scale: float) -> torch.Tensor:
    y: torch.Tensor = torch.ops.aten.elu(x, alpha, scale, input_scale)
    return y


EXP, EXPM1 = Op("exp", torch.exp), Op("expm1", torch.expm1)
EXP_BELOW = Op("exp_below", torch.exp)
LOG, LOG2, LOG1P = Op("log", torch.log), Op("log2", torch.log2), Op("log1p", torch.log1p)
SIGMOID, LOG_SIGMOID = Op("sigmoid", torch.sigmoid), Op("log_sigmoid", F.logsigmoid)
TANH, ERF = Op("tanh", torch.tanh), Op("erf", torch.erf)
SILU, MISH = Op("silu", F.silu), Op("mish", F.mish)
GELU, GELU_TANH = Op("gelu", gelu), Op("gelu_tanh", gelu_tanh)
GELU_SLOPE, MISH_SLOPE = Op("gelu_slope", gelu_slope), Op("mish_slope", mish_slope)
SOFTPLUS = Op("softplus", F.softplus, (1.0, 20.0))
SOFTPLUS_STEEP = Op("softplus", F.softplus, (2.5, 15.0))
ELU = Op("elu", elu, (1.0, 1.0, 1.0))
ELU_SCALED = Op("elu", elu, (1.5, 0.7, 1.3))
SELU = Op("elu", elu, (SELU_ALPHA, SELU_SCALE, 1.0))
CELU = Op("elu", elu, (0.75, 1.0, 1 / 0.75))

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
    *(EXP, EXP_BELOW, EXPM1, LOG, LOG2, LOG1P, SIGMOID, LOG_SIGMOID, TANH, ERF, SILU, MISH, GELU),
    *(GELU_SLOPE, MISH_SLOPE),
    *(GELU_TANH, SOFTPLUS, SOFTPLUS_STEEP, ELU, ELU_SCALED, SELU, CELU),
    Op("sqrt", torch.sqrt),
    Op("rsqrt", torch.rsqrt),
    Op("reciprocal", torch.reciprocal),
    Op("softsign", F.softsign),
    Op("hardswish", F.hardswish),
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

SIGNED = ("expm1", "log1p", "tanh", "erf", "mish", "gelu", "silu", "round")


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


class Loops:
    """The functions over arrays, on the host or on a device, and what both are asked."""

    device = "cpu"

    def __call__(self, name: str, *args: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def apply(self, op: Op, x: torch.Tensor) -> torch.Tensor:
        return self(op.name, x, *(torch.full_like(x, p) for p in op.params))

    def eager(self, op: Op, x: torch.Tensor) -> torch.Tensor:
        return op.torch(x.to(self.device), *op.params).cpu()

    def check_ulp(self, bound: Bound) -> None:
        x = samples(bound.low, bound.high)
        exact = bound.op.torch(x.double(), *bound.op.params)
        error = ulp_error(self.apply(bound.op, x), exact)
        worst = int(error.argmax())
        print(f"{bound}: {error[worst]:.2f} ulp at {x[worst]:.9g}")
        assert error[worst] <= bound.ulp, f"{error[worst]:.2f} ulp at x = {x[worst]:.9g}"

    def check_exact(self, op: Op) -> None:
        x = torch.cat([torch.tensor(SPECIAL), torch.linspace(-9, 9, 1001)])
        assert_same(self.apply(op, x), self.eager(op, x), rtol=0, atol=0)

    def check_near(self, op: Op, x: torch.Tensor, rtol: float) -> None:
        assert_same(self.apply(op, x), self.eager(op, x), rtol=rtol, atol=2e-7)

    def check_sign_of_zero(self, name: str) -> None:
        assert torch.signbit(self(name, torch.tensor([0.0, -0.0]))).tolist() == [False, True]

    def check_pairs(self, name: str) -> None:
        a, b = torch.tensor(list(itertools.product(SPECIAL, SPECIAL))).T.contiguous()
        assert_same(self(name, a, b), PAIRS[name](a, b), rtol=0, atol=0)


def rms(x: torch.Tensor) -> torch.Tensor:
    return x.square().mean().sqrt()


def allowed(op: Op, x: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """The contract of NUMERICS: twice eager's error against float64, plus a few eps of the rms."""
    return 2 * rms(op.torch(x, *op.params) - exact) + 2**-23 * rms(exact)
