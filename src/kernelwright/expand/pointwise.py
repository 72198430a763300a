"""Pointwise operators. A row of expr.OPS lowers by itself: its arguments are the schema's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from kernelwright.expand.builder import FLOATS, Builder, Lowering
from kernelwright.expr import OPS, Expr, call, const, load
from kernelwright.graph import Node, Ref

SELU_ALPHA = 1.6732632423543772
SELU_SCALE = 1.0507009873554805

Arg = Expr | float


def _generic(op: str) -> Callable[..., Expr]:
    return lambda *args: call(op, *args[: OPS[op].arity])


def _alpha(op: str) -> Callable[..., Expr]:
    return lambda x, y, alpha: call(op, x, y if alpha == 1 else call("mul", y, alpha))


def _clamp(x: Expr, lo: Arg | None, hi: Arg | None) -> Expr:
    if lo is None:
        return x if hi is None else call("minimum", x, hi)
    return call("maximum", x, lo) if hi is None else call("clamp", x, lo, hi)


def _pow(x: Arg, exponent: Arg) -> Expr:
    if isinstance(exponent, Expr) or not isinstance(x, Expr):
        return call("pow", x, exponent)
    if exponent == 2:
        return call("square", x)
    if exponent == 0.5:
        return call("sqrt", x)
    if exponent == 1:
        return x
    return call("reciprocal", x) if exponent == -1 else call("pow", x, exponent)


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
    "threshold": lambda x, limit, value: call("where", call("le", x, limit), value, x),
    "clone": lambda x, *_: x,
    "contiguous": lambda x, *_: x,
    "lift_fresh_copy": lambda x: x,
}
# Values are never written in place here, so a copy matters only where the caller gets it.
COPIES = ("clone", "contiguous", "lift_fresh_copy")
NAMES = {*SPECIAL, *OPS} - {"finite_or_zero", "gelu_tanh"}


def lower(builder: Builder, node: Node) -> str | None:
    """Tensors become loads, numbers constants; anything else declines."""
    if node.op == "dropout":
        return _dropout(builder, node)
    if node.op in COPIES and node.name not in builder.graph.results:
        return builder.view("reshape", node.args[0].name, node.type.shape)
    operands: list[str] = []
    args: list[Any] = []
    for arg in node.args:
        if isinstance(arg, Ref):
            args.append(_operand(builder, arg.name, operands))
        elif isinstance(arg, bool | int | float) and math.isfinite(arg):
            args.append(float(arg))
        elif isinstance(arg, float) or arg is None or isinstance(arg, str):
            args.append(arg)
        else:
            args.append(None)
    types = [builder.type(o).dtype for o in operands]
    if not operands or not all(t in FLOATS or t is torch.bool for t in types):
        return None
    if node.type.dtype not in (*FLOATS, torch.bool) or torch.bool in types[:1]:
        return (
            None
            if node.op not in ("where", "masked_fill")
            else _emit(builder, node, args, operands)
        )
    return _emit(builder, node, args, operands)


def _emit(builder: Builder, node: Node, args: list[Any], operands: list[str]) -> str | None:
    expr = SPECIAL.get(node.op, _generic(node.op) if node.op in OPS else None)
    assert expr is not None
    return builder.map(expr(*args), operands, node.type)


def _operand(builder: Builder, name: str, operands: list[str]) -> Expr:
    constant = builder.graph.constants.get(name)
    if constant is not None and constant.ndim == 0 and constant.is_floating_point():
        return const(float(constant))
    if name not in operands:
        operands.append(name)
    return load(operands.index(name))


def _dropout(builder: Builder, node: Node) -> str | None:
    """Outside training mode dropout is the identity."""
    value, _, training = node.args
    return None if training else builder.view("reshape", value.name, node.type.shape)


LOWERINGS: dict[str, Lowering] = {name: lower for name in (*sorted(NAMES), "dropout")}
