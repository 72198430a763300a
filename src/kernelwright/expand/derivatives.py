"""Derivatives of pointwise functions: `gelu_backward(g, x)` is g times an expression of x.

In: the arguments of ATen's `*_backward`, in the order of its schema; tensors are loads. Out: the
expression of one element. Each keeps ATen's own form where special values decide: what is NaN or
zero at an infinity, on which side the ends of a range count. Where x is NaN, ATen's vectors on a
CPU give other gradients of clamps, shrinks and ELU than its other kernels, which are followed.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from kernelwright.expr import Expr, call, load

# sqrt(2 / pi), and the factor of the cube in gelu's approximation.
GELU_SCALE, GELU_CUBE = math.sqrt(2 / math.pi), 0.044715


def _mul(*factors: Expr | float) -> Expr:
    product = factors[0]
    for factor in factors[1:]:
        product = call("mul", product, factor)
    assert isinstance(product, Expr)
    return product


def _within(x: Expr, low: float, high: float, inside: Expr | float, outside: Expr | float) -> Expr:
    """`inside` where low < x < high; a NaN is not."""
    return call("where", _mul(call("gt", x, low), call("lt", x, high)), inside, outside)


def _gelu(g: Expr, x: Expr, approximate: str) -> Expr:
    if approximate != "tanh":
        return _mul(g, call("gelu_slope", x))
    # gelu_tanh(x) = x sigmoid(2 u), u = GELU_SCALE (x + GELU_CUBE x^3)
    square = call("square", x)
    share = call("sigmoid", _mul(x, 2 * GELU_SCALE, call("add", 1.0, _mul(square, GELU_CUBE))))
    growth = _mul(2 * GELU_SCALE, call("add", 1.0, _mul(square, 3 * GELU_CUBE)))
    rest = _mul(x, _mul(share, call("sub", 1.0, share)), growth)
    return _mul(g, call("add", share, rest))


def _silu(g: Expr, x: Expr) -> Expr:
    share = call("sigmoid", x)
    return _mul(g, share, call("add", 1.0, _mul(x, call("sub", 1.0, share))))


def _hardtanh(g: Expr, x: Expr, low: float, high: float) -> Expr:
    outside = call("maximum", call("le", x, low), call("ge", x, high))
    return call("where", outside, 0.0, g)


def _hardswish(g: Expr, x: Expr) -> Expr:
    inside = _mul(g, call("add", call("div", x, 3.0), 0.5))
    return call("where", call("le", x, -3.0), 0.0, call("where", call("ge", x, 3.0), g, inside))


def _leaky_relu(g: Expr, x: Expr, slope: float, is_result: float) -> Expr:
    return call("where", call("gt", x, 0.0), g, _mul(g, slope))


def _elu(
    g: Expr, alpha: float, scale: float, input_scale: float, is_result: float, x: Expr
) -> Expr:
    """Of elu's argument, or of its result, which is alpha * scale less than a multiple of exp."""
    steep = call("mul", g, input_scale)
    if is_result:
        below = _mul(steep, call("add", x, alpha * scale))
    else:
        below = _mul(steep, alpha * scale, call("exp", _mul(x, input_scale)))
    return call("where", call("le", x, 0.0), below, _mul(g, scale))


def _softplus(g: Expr, x: Expr, beta: float, threshold: float) -> Expr:
    z = _mul(x, beta)
    return call("where", call("gt", z, threshold), g, _mul(g, call("sigmoid", z)))


def _logit(g: Expr, x: Expr, eps: float | None) -> Expr:
    slope = call("div", g, _mul(x, call("sub", 1.0, x)))
    low, outside = (0.0, math.nan) if eps is None or eps < 0 else (eps, 0.0)
    there = _mul(call("ge", x, low), call("le", x, 1.0 - low))
    return call("where", there, slope, outside)


def prelu(x: Expr, slope: Expr) -> Expr:
    return call("where", call("gt", x, 0.0), x, call("mul", slope, x))


def _prelu_slopes(g: Expr, x: Expr, slope: Expr) -> tuple[Expr, Expr]:
    """The gradients of x and, of each element, of the slope."""
    positive = call("gt", x, 0.0)
    of_x = call("where", positive, g, _mul(slope, g))
    return of_x, call("where", positive, 0.0, _mul(x, g))


def _shrink(g: Expr, x: Expr, by: float) -> Expr:
    """Of softshrink and of hardshrink: nothing comes of what lies within `by`."""
    return call("where", _mul(call("ge", x, -by), call("le", x, by)), 0.0, g)


DERIVATIVES: dict[str, Callable[..., Expr]] = {
    "elu_backward": _elu,
    "gelu_backward": _gelu,
    "hardshrink_backward": _shrink,
    "hardsigmoid_backward": lambda g, x: _within(x, -3.0, 3.0, call("div", g, 6.0), 0.0),
    "hardswish_backward": _hardswish,
    "hardtanh_backward": _hardtanh,
    "leaky_relu_backward": _leaky_relu,
    "log_sigmoid_backward": lambda g, x: _mul(g, call("sigmoid", call("neg", x))),
    "logit_backward": _logit,
    "mish_backward": lambda g, x: _mul(g, call("mish_slope", x)),
    "native_dropout_backward": lambda g, keep, scale: _mul(g, _mul(keep, scale)),
    "sigmoid_backward": lambda g, y: _mul(g, call("sub", 1.0, y), y),
    "silu_backward": _silu,
    "softplus_backward": _softplus,
    "softshrink_backward": _shrink,
    "tanh_backward": lambda g, y: _mul(g, call("sub", 1.0, call("square", y))),
    "threshold_backward": lambda g, x, limit: call("where", call("le", x, limit), 0.0, g),
}
PRELU_SLOPES = _prelu_slopes(load(0), load(1), load(2))
