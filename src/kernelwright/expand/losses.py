"""Losses and gates: an expression over a value and its target, reduced as it is asked for.

A loss of rows (cross entropy, triplets) makes one number of each row first; what is left is one
more reduction, over the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from kernelwright.expand.builder import Builder, Lowering, count
from kernelwright.expand.reductions import mean, shifted_exponentials
from kernelwright.expr import Expr, call, index, load, size
from kernelwright.graph import Node, Shape, TensorType, broadcast

# As torch numbers them: `none`, `mean`, `sum`.
NONE, MEAN = 0, 1
# Numbers of classes are compared in float32, which has every integer up to here.
MOST_CLASSES = 1 << 24


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
    apart = call("abs", _difference(x, y))
    if beta == 0:
        return apart
    parabola = call("div", call("mul", call("mul", 0.5, apart), apart), beta)
    return call("where", call("lt", apart, beta), parabola, call("sub", apart, 0.5 * beta))


def _huber(x: Expr, y: Expr, delta: float) -> Expr:
    apart = call("abs", _difference(x, y))
    parabola = call("mul", call("mul", 0.5, apart), apart)
    line = call("mul", delta, call("sub", apart, 0.5 * delta))
    return call("where", call("le", apart, delta), parabola, line)


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


def _cross_entropy(builder: Builder, node: Node) -> str | None:
    """cross_entropy_loss(x, target, weight, reduction, ignore_index, label_smoothing).

    The score of the right class is found by comparing places with its number, in the one pass that
    sums the exponentials. A number that is no class gives NaN, where eager stops the program.
    """
    value, target, weight, reduction, ignored, smoothing = node.args
    shape, kind = builder.shape(value.name), builder.type(target.name).dtype
    axis = min(1, len(shape) - 1)
    classes = shape[axis] if shape else 0
    if not isinstance(classes, int) or not 0 < classes <= MOST_CLASSES or weight is not None:
        return None
    if not builder.floating(value.name) or kind is not torch.int64:
        return None
    if reduction == NONE and node.type.shape != builder.shape(target.name):
        return None  # torch 2.13 loses the shape of a batch whose size is symbolic
    one = (*shape[:axis], 1, *shape[axis + 1 :])
    right = builder.view("reshape", target.name, one, label="right")
    _, shifted, _, total = shifted_exponentials(builder, value.name, (axis,), safe=False)
    log = builder.apply("log", total, label="log_sum")
    picks = call("where", call("eq", index(axis), load(1)), load(0), 0.0)
    picked = builder.map(picks, [shifted, right], TensorType(shape, torch.float32), "picked")
    score = builder.reduce("sum", picked, (axis,), True, label="score")
    operands, each = [log, score, right], _difference(load(0), load(1))
    if smoothing:
        spread = builder.apply("sub", log, shifted, label="spread")
        operands.append(builder.reduce("sum", spread, (axis,), True, label="spread_sum"))
        share = call("mul", smoothing / classes, load(3))
        each = call("add", call("mul", 1.0 - smoothing, each), share)
    is_class = call("where", call("lt", load(2), 0.0), 0.0, call("lt", load(2), float(classes)))
    each = call("where", is_class, each, float("nan"))
    each = call("where", call("eq", load(2), float(ignored)), 0.0, each)
    return _of_rows(builder, node, each, operands, one, reduction, (right, float(ignored)))


def _triplet(builder: Builder, node: Node) -> str | None:
    """triplet_margin_loss(anchor, positive, negative, margin, p, eps, swap, reduction)."""
    *operands, margin, order, eps, swap, reduction = node.args
    anchor, positive, negative = names = [o.name for o in operands]
    shape = broadcast(*(builder.shape(n) for n in names))
    if not shape or order not in (1, 2) or not builder.floating(*names):
        return None

    def distance(x: str, y: str) -> str:
        apart = call("add", _difference(load(0), load(1)), eps)
        part = call("square" if order == 2 else "abs", apart)
        both = broadcast(builder.shape(x), builder.shape(y))  # of these two, whatever the third is
        assert both, "a part of what broadcasts"
        each = builder.map(part, [x, y], TensorType(both, builder.type(x).dtype), "part")
        total = builder.reduce("sum", each, (len(both) - 1,), True, label="distance")
        return builder.apply("sqrt", total, label="distance") if order == 2 else total

    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = builder.apply("minimum", far, distance(positive, negative), label="nearest")
    each = call("maximum", call("add", margin, _difference(load(0), load(1))), 0.0)
    rows = broadcast(builder.shape(near), builder.shape(far))
    assert rows is not None
    return _of_rows(builder, node, each, [near, far], rows, reduction)


def _of_rows(
    builder: Builder,
    node: Node,
    each: Expr,
    operands: Sequence[str],
    shape: Shape,
    reduction: int,
    ignoring: tuple[str, float] | None = None,
) -> str:
    """The loss of each row, then their sum, or their mean over those that are not ignored."""
    if reduction == NONE:
        rows = builder.map(each, operands, TensorType(shape, node.type.dtype), "each")
        return builder.view("reshape", rows, node.type.shape)
    axes = tuple(range(len(shape)))
    rows = builder.map(each, operands, TensorType(shape, torch.float32), "each")
    total = builder.reduce("sum", rows, axes, False, label="sum", split=False)
    if reduction != MEAN:
        return builder.map(load(0), [total], node.type)
    if ignoring is None:
        return builder.map(call("div", load(0), size(count(shape, axes))), [total], node.type)
    classes, ignored = ignoring
    counts = call("ne", load(0), ignored)
    counted = builder.map(counts, [classes], TensorType(shape, torch.float32), "counts")
    number = builder.reduce("sum", counted, axes, False, label="count", split=False)
    return builder.map(call("div", load(0), load(1)), [total, number], node.type)


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
    "cross_entropy_loss": _cross_entropy,
    "triplet_margin_loss": _triplet,
    "glu": _glu,
}
