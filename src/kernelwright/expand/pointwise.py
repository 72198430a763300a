"""Pointwise operators. A row of expr.OPS lowers by itself: its arguments are the schema's."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import sympy
import torch

from kernelwright.expand.builder import FLOATS, Builder, Lowering
from kernelwright.expand.derivatives import DERIVATIVES, PRELU_SLOPES, prelu
from kernelwright.expr import OPS, Expr, call, const, index, load, size
from kernelwright.graph import STORED, Node, Ref, Scalar, broadcast
from kernelwright.scalars import as_expr

SELU_ALPHA = 1.6732632423543772
SELU_SCALE = 1.0507009873554805

Arg = Expr | float
UNREADABLE = object()


def _generic(op: str) -> Callable[..., Expr]:
    return lambda *args: call(op, *args[: OPS[op].arity])


def _alpha(op: str) -> Callable[..., Expr]:
    return lambda x, y, alpha: call(op, x, y if alpha == 1 else call("mul", y, alpha))


def _clamp(x: Expr, lo: Arg | None, hi: Arg | None) -> Expr:
    if lo is None:
        return x if hi is None else call("minimum", x, hi)
    return call("maximum", x, lo) if hi is None else call("clamp", x, lo, hi)


# Those that torch has its own loops for.
POWERS: dict[float, Callable[[Expr], Expr]] = {
    -2: lambda x: call("reciprocal", call("square", x)),
    -1: lambda x: call("reciprocal", x),
    -0.5: lambda x: call("rsqrt", x),
    0.5: lambda x: call("sqrt", x),
    1: lambda x: x,
    2: lambda x: call("square", x),
    3: lambda x: call("mul", call("square", x), x),
}


def _pow(x: Arg, exponent: Arg) -> Expr:
    if isinstance(exponent, Expr) or not isinstance(x, Expr):
        return call("pow", x, exponent)
    if exponent in POWERS:
        return POWERS[exponent](x)
    return call("pow", x, exponent)


def _lerp(start: Expr, end: Expr, weight: Arg) -> Expr:
    """From the nearer end, as torch has it: exact at both of them."""
    way = call("sub", end, start)
    near = call("add", start, call("mul", weight, way))
    far = call("sub", end, call("mul", way, call("sub", 1.0, weight)))
    if isinstance(weight, Expr):
        return call("where", call("lt", call("abs", weight), 0.5), near, far)
    return near if abs(weight) < 0.5 else far


def _scaled(value: Arg, product: Expr) -> Expr:
    return product if value == 1 else call("mul", value, product)


def _hardshrink(x: Expr, by: float) -> Expr:
    inside = call("mul", call("ge", x, -by), call("le", x, by))
    return call("where", inside, 0.0, x)


def _softshrink(x: Expr, by: float) -> Expr:
    """Nearer to zero by so much, or zero; a NaN stays one."""
    low = call("where", call("lt", x, -by), call("add", x, by), call("mul", x, 0.0))
    return call("where", call("gt", x, by), call("sub", x, by), low)


def _logit(x: Expr, eps: float | None) -> Expr:
    inside = x if eps is None or eps < 0 else call("clamp", x, eps, 1.0 - eps)
    return call("log", call("div", inside, call("sub", 1.0, inside)))


def _xlogy(x: Arg, y: Arg) -> Expr:
    """x log y, where 0 log y is 0 for every number y."""
    product = call("where", call("eq", x, 0.0), 0.0, call("mul", x, call("log", y)))
    return call("where", call("ne", y, y), y, product)


def _true(x: Expr) -> Expr:
    return call("ne", x, 0.0)


def _both(x: Expr, y: Expr) -> Expr:
    return call("mul", _true(x), _true(y))


def _either(x: Expr, y: Expr) -> Expr:
    return call("maximum", _true(x), _true(y))


SPECIAL: dict[str, Callable[..., Expr]] = {
    "add": _alpha("add"),
    "sub": _alpha("sub"),
    "rsub": lambda x, y, alpha: call("sub", y, x if alpha == 1 else call("mul", x, alpha)),
    "clamp": _clamp,
    "clamp_min": lambda x, lo: call("maximum", x, lo),
    "clamp_max": lambda x, hi: call("minimum", x, hi),
    "pow": _pow,
    "gelu": lambda x, approximate: call("gelu_tanh" if approximate == "tanh" else "gelu", x),
    "selu": lambda x: call("elu", x, SELU_ALPHA, SELU_SCALE, 1.0),
    "celu": lambda x, alpha: call("elu", x, alpha, 1.0, 1.0 / alpha),
    "masked_fill": lambda x, mask, value: call("where", mask, value, x),
    "hardshrink": _hardshrink,
    "softshrink": _softshrink,
    "_prelu_kernel": prelu,
    "logit": _logit,
    "sgn": lambda x: call("sign", x),
    "isnan": lambda x: call("ne", x, x),
    "xlogy": _xlogy,
    "isinf": lambda x: call("eq", call("abs", x), math.inf),
    "threshold": lambda x, limit, value: call("where", call("le", x, limit), value, x),
    "clone": lambda x, *_: x,
    "contiguous": lambda x, *_: x,
    "lift_fresh_copy": lambda x: x,
    "min.other": lambda x, y: call("minimum", x, y),
    "max.other": lambda x, y: call("maximum", x, y),
    "lerp": _lerp,
    "addcmul": lambda x, a, b, value: call("add", x, _scaled(value, call("mul", a, b))),
    "addcdiv": lambda x, a, b, value: call("add", x, _scaled(value, call("div", a, b))),
    "logical_and": _both,
    "logical_or": _either,
    "logical_xor": lambda x, y: call("ne", _true(x), _true(y)),
    "logical_not": lambda x: call("eq", x, 0.0),
    "bitwise_and": _both,
    "bitwise_or": _either,
    "bitwise_xor": lambda x, y: call("ne", x, y),
    "bitwise_not": lambda x: call("eq", x, 0.0),
}
SPECIAL |= DERIVATIVES
SPECIAL |= {f"__{op}__": SPECIAL[f"bitwise_{op}"] for op in ("and", "or", "xor")}
# On other elements than truth values these work on their bits.
BITWISE = tuple(op for op in SPECIAL if op.startswith(("bitwise_", "__")))
# For each way to make a tensor of one number: where that stands, or, behind None, what it is.
FILLS: dict[str, tuple[int | None, float]] = {
    "full": (1, 0.0),
    "full_like": (1, 0.0),
    "new_full": (2, 0.0),
    "fill": (1, 0.0),
    "scalar_tensor": (0, 0.0),
    "zeros": (None, 0.0),
    "zeros_like": (None, 0.0),
    "new_zeros": (None, 0.0),
    "ones": (None, 1.0),
    "ones_like": (None, 1.0),
    "new_ones": (None, 1.0),
}
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
# Places along an axis are compared in float32, which has every integer up to here.
MOST_PLACES = 1 << 24
# Values are never written in place here, so a copy matters only where the caller gets it.
COPIES = ("clone", "contiguous", "lift_fresh_copy")
NAMES = {*SPECIAL, *OPS} - {"finite_or_zero", "gelu_tanh"}


def lower(builder: Builder, node: Node) -> str | None:
    """Tensors become loads, numbers constants, sizes themselves; anything else declines."""
    if node.op == "dropout":
        return _dropout(builder, node)
    if node.op in COPIES:
        return builder.copied(node.args[0].name)
    operands: list[str] = []
    args = [_argument(builder, arg, operands) for arg in node.args]
    types = [builder.type(o).dtype for o in operands]
    if not operands or any(a is UNREADABLE for a in args):
        return None
    known = (*FLOATS, torch.bool, *((torch.int64,) if _compares_small(node) else ()))
    if any(t not in known for t in (node.type.dtype, *types)):
        return None
    if broadcast(*(builder.shape(o) for o in operands)) != node.type.shape:
        return None  # sizes that agree only for some batches, which a guard of export's sees to
    if node.op in BITWISE and types != [torch.bool] * len(types):
        return None
    expr = SPECIAL.get(node.op, _generic(node.op) if node.op in OPS else None)
    assert expr is not None
    return builder.map(expr(*args), operands, node.type)


def _compares_small(node: Node) -> bool:
    """Whether integers are compared with a number that float32 has, and all below it."""
    number = node.args[1] if node.op in COMPARISONS else None
    return type(number) is int and abs(number) < MOST_PLACES


def _argument(builder: Builder, arg: Any, operands: list[str]) -> Any:
    """What an argument is inside an expression; UNREADABLE: a number with no such form."""
    if isinstance(arg, Ref):
        return _operand(builder, arg.name, operands)
    if isinstance(arg, bool | int | float):
        return float(arg)
    if isinstance(arg, sympy.Expr):
        return size(arg)
    if isinstance(arg, Scalar):
        items = {symbol: _operand(builder, ref.name, operands) for symbol, ref in arg.items}
        found = as_expr(arg.expr, items)
        return UNREADABLE if found is None else found
    return arg if isinstance(arg, str) else None


def _operand(builder: Builder, name: str, operands: list[str]) -> Expr:
    constant = builder.constant(name)
    if constant is not None and constant.ndim == 0 and not constant.is_complex():
        return const(float(constant))
    if name not in operands:
        operands.append(name)
    return load(operands.index(name))


def _filled(builder: Builder, node: Node) -> str | None:
    """A tensor of one number: whoever needs it has it as a constant."""
    position, value = FILLS[node.op.split(".")[0]]
    if node.type.dtype not in (*FLOATS, torch.bool):
        return None
    operands: list[str] = []
    number = _argument(builder, value if position is None else node.args[position], operands)
    if number is UNREADABLE or number is None or any(not builder.floating(o) for o in operands):
        return None
    expr = number if isinstance(number, Expr) else const(number)
    return builder.map(_true(expr) if node.type.dtype is torch.bool else expr, operands, node.type)


def _triangle(op: str) -> Lowering:
    """tril and triu: (x, diagonal), zero beyond the diagonal."""

    def lower(builder: Builder, node: Node) -> str | None:
        value, diagonal = node.args[0].name, node.args[1]
        shape, dtype = builder.shape(value), builder.type(value).dtype
        sides = [d for d in shape[-2:] if isinstance(d, int) and d <= MOST_PLACES]
        if len(sides) < 2 or dtype not in (*FLOATS, torch.bool) or not isinstance(diagonal, int):
            return None
        row, column = index(len(shape) - 2), index(len(shape) - 1)
        kept = call(op, call("sub", column, row), float(diagonal))
        return builder.map(call("where", kept, load(0), 0.0), [value], node.type)

    return lower


def _prelu(builder: Builder, node: Node) -> str | None:
    """x, or where it is not positive its channel's weight times x."""
    value, weight = node.args[0].name, node.args[1].name
    if not builder.floating(value, weight):
        return None
    shape, (slopes,) = builder.shape(value), builder.shape(weight) or (1,)
    sizes = [slopes if i == min(1, len(shape) - 1) else 1 for i in range(len(shape))]
    slope = builder.view("reshape", weight, tuple(sizes), label="slope")
    return builder.map(prelu(load(0), load(1)), [value, slope], node.type)


def _converted(builder: Builder, node: Node) -> str | None:
    """_to_copy(x, dtype, layout, device, ...) to another type, and nowhere else."""
    value, _, *rest = node.args
    dtype = builder.type(value.name).dtype
    if any(rest) or node.type.dtype not in FLOATS or dtype not in (*FLOATS, torch.bool):
        return None
    expr = call("where", load(0), 1.0, 0.0) if dtype is torch.bool else load(0)
    return builder.map(expr, [value.name], node.type)


def _copied(builder: Builder, node: Node) -> str | None:
    """copy(x, y): y in the shape and type of x."""
    source = node.args[1].name
    same = builder.type(source).dtype == node.type.dtype
    if node.type.dtype not in STORED or not (same or builder.floating(node.args[0].name, source)):
        return None
    wide = builder.view("expand", source, node.type.shape, label="source")
    return builder.map(load(0), [wide], node.type)


def _log_sigmoid(builder: Builder, node: Node) -> str | None:
    """log_sigmoid_forward(x): beside the result what ATen's own kernel for a CPU keeps."""
    value = node.args[0].name
    if not builder.floating(value):
        return None
    power = call("exp_below", call("neg", call("abs", load(0))))
    kept = builder.map(power, [value], node.type, "power")
    return builder.several(r0=builder.apply("log_sigmoid", value, label="result"), r1=kept)


def _log_sigmoid_backward(builder: Builder, node: Node) -> str | None:
    """(g, x, power): the power is made again, since on a GPU there is none."""
    return lower(builder, replace(node, args=node.args[:2]))


def _results(*exprs: Expr) -> Lowering:
    """Each result is an expression of the tensors that are given, and of the first one's size."""

    def lower(builder: Builder, node: Node) -> str | None:
        operands = [arg.name for arg in node.args]
        if not builder.floating(*operands):
            return None
        made = [builder.map(e, operands, node.type, f"result{i}") for i, e in enumerate(exprs)]
        return builder.several(**{f"r{i}": value for i, value in enumerate(made)})

    return lower


def _dropout(builder: Builder, node: Node) -> str | None:
    """Outside training mode dropout is the identity."""
    value, _, training = node.args
    return None if training else builder.view("reshape", value.name, node.type.shape)


LOWERINGS: dict[str, Lowering] = {
    **{name: lower for name in (*sorted(NAMES), "dropout")},
    **{name: _filled for name in FILLS},
    "tril": _triangle("le"),
    "triu": _triangle("ge"),
    "prelu": _prelu,
    "_prelu_kernel_backward": _results(*PRELU_SLOPES),
    "log_sigmoid_forward": _log_sigmoid,
    "log_sigmoid_backward": _log_sigmoid_backward,
    "_to_copy": _converted,
    "copy": _copied,
}
