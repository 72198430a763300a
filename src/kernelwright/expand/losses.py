"""Losses and gates: an expression over a value and its target, reduced as it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernelwright.expand.builder import Builder, Lowering
from kernelwright.expand.reductions import mean
from kernelwright.expr import Expr, call, load
from kernelwright.graph import Node, TensorType, broadcast

# As torch numbers them: `none`, `mean`, `sum`.
NONE, MEAN = 0, 1


def _reduced(
    builder: Builder, node: Node, expr: Expr, operands: Sequence[str], reduction: int
) -> str | None:
    """The expression over its operands, then its mean or its sum over everything."""
    shape = broadcast(*(builder.shape(o) for o in operands))
    if shape is None or not builder.floating(*operands):
        return None
    type = TensorType(shape, node.type.dtype)
    if reduction == NONE or not shape:
        return builder.map(expr, operands, type)
    each = builder.map(expr, operands, type, "each")
    axes = tuple(range(len(shape)))
    if reduction == MEAN:
        return mean(builder, each, axes, False, None)
    return builder.reduce("sum", each, axes, False)


def _loss(each: Callable[..., Expr]) -> Lowering:
    """(input, target, reduction, parameters ...): `each` is the loss of one element."""

    def lower(builder: Builder, node: Node) -> str | None:
        value, target, reduction, *parameters = node.args
        expr = each(load(0), load(1), *parameters)
        return _reduced(builder, node, expr, [value.name, target.name], reduction)

    return lower


def _difference(x: Expr, y: Expr) -> Expr:
    return call("sub", x, y)


def _smooth_l1(x: Expr, y: Expr, beta: float) -> Expr:
    size = call("abs", _difference(x, y))
    if beta == 0:
        return size
    parabola = call("div", call("mul", call("mul", 0.5, size), size), beta)
    return call("where", call("lt", size, beta), parabola, call("sub", size, 0.5 * beta))


def _huber(x: Expr, y: Expr, delta: float) -> Expr:
    size = call("abs", _difference(x, y))
    parabola = call("mul", call("mul", 0.5, size), size)
    line = call("mul", delta, call("sub", size, 0.5 * delta))
    return call("where", call("le", size, delta), parabola, line)


def _kl_div(x: Expr, target: Expr, log_target: bool) -> Expr:
    """target (log target - x), where 0 log 0 is 0."""
    if log_target:
        return call("mul", call("exp", target), _difference(target, x))
    entropy = call("mul", target, call("log", target))
    entropy = call("where", call("eq", target, 0.0), 0.0, entropy)
    return call("sub", entropy, call("mul", target, x))


def _with_logits(builder: Builder, node: Node) -> str | None:
    """binary_cross_entropy_with_logits(x, target, weight, pos_weight, reduction)."""
    value, target, weight, positive, reduction = node.args
    if positive is not None:
        return None
    x, wanted = load(0), load(1)
    expr = call("sub", call("mul", call("sub", 1.0, wanted), x), call("log_sigmoid", x))
    operands = [value.name, target.name]
    if weight is not None:
        expr = call("mul", expr, load(2))
        operands.append(weight.name)
    return _reduced(builder, node, expr, operands, reduction)


def _glu(builder: Builder, node: Node) -> str | None:
    """glu(x, dim): the first half times the sigmoid of the second."""
    value, dim = node.args
    shape = builder.shape(value.name)
    axis = dim % len(shape)
    half = node.type.shape[axis]
    if not builder.floating(value.name):
        return None
    kept = builder.slice(value.name, axis, 0, half, label="value")
    gate = builder.slice(value.name, axis, half, half, label="gate")
    expr = call("mul", load(0), call("sigmoid", load(1)))
    return builder.map(expr, [kept, gate], node.type)


LOWERINGS: dict[str, Lowering] = {
    "mse_loss": _loss(lambda x, y: call("square", _difference(x, y))),
    "l1_loss": _loss(lambda x, y: call("abs", _difference(x, y))),
    "smooth_l1_loss": _loss(_smooth_l1),
    "huber_loss": _loss(_huber),
    "kl_div": _loss(_kl_div),
    "binary_cross_entropy_with_logits": _with_logits,
    "glu": _glu,
}
