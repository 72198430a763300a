"""Losses and gates: an expression over a value and its target, reduced as it is asked for.

A loss of rows (cross entropy, triplets) makes one number of each row first; what is left is one
more reduction, over the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from kernelwright.expand.builder import Builder, Lowering, count
from kernelwright.expand.reductions import mean, shifted_exponentials
from kernelwright.expr import Expr, call, const, index, load, size
from kernelwright.graph import Node, Ref, Shape, TensorType, broadcast, product

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


def _smooth_l1_slope(x: Expr, y: Expr, beta: float) -> Expr:
    apart = _difference(x, y)
    return call("sign", apart) if beta == 0 else _bounded(call("div", apart, beta), 1.0)


def _bounded(x: Expr, by: float) -> Expr:
    return call("clamp", x, -by, by)


def _kl_div(x: Expr, target: Expr, log_target: bool) -> Expr:
    """target (log target - x), where 0 log 0 is 0."""
    if log_target:
        return call("mul", call("exp", target), _difference(target, x))
    entropy = call("mul", target, call("log", target))
    entropy = call("where", call("eq", target, 0.0), 0.0, entropy)
    return call("sub", entropy, call("mul", target, x))


def _gradient(slope: Callable[..., Expr]) -> Lowering:
    """(g, input, target, reduction, parameters ...): `slope` is the derivative of one element."""

    def lower(builder: Builder, node: Node) -> str | None:
        cotangent, value, target, reduction, *parameters = node.args
        expr = slope(load(1), load(2), *parameters)
        return _of_cotangent(builder, node, expr, [cotangent, value, target], reduction)

    return lower


def _of_cotangent(
    builder: Builder, node: Node, slope: Expr, operands: Sequence[Ref], reduction: int
) -> str | None:
    """The cotangent, which is the first operand, times the derivative and its share of a mean."""
    names = [o.name for o in operands]
    if not builder.floating(*names):
        return None
    if reduction == MEAN:
        slope = call("div", slope, size(product(node.type.shape)))
    if broadcast(*(builder.shape(n) for n in names)) != node.type.shape:
        return None
    return builder.map(call("mul", load(0), slope), names, node.type)


def _binary_cross_entropy(builder: Builder, node: Node) -> str | None:
    """(x, target, weight, reduction): no logarithm is below -100.

    What is no probability gives NaN, where eager stops the program.
    """
    value, target, weight, reduction = node.args
    x, wanted = load(0), load(1)
    logs = call("log", x), call("log1p", call("neg", x))
    near, far = (call("maximum", log, -100.0) for log in logs)
    missing = call("mul", call("sub", wanted, 1.0), far)
    expr = call("sub", missing, call("mul", wanted, near))
    operands = [value.name, target.name]
    if weight is not None:
        operands.append(weight.name)
        expr = call("mul", expr, load(2))
    return _reduced(builder, node, expr, operands, reduction)


def _soft_margin(x: Expr, y: Expr) -> Expr:
    return call("softplus", call("neg", call("mul", x, y)), 1.0, 20.0)


def _soft_margin_slope(x: Expr, y: Expr) -> Expr:
    return call("neg", call("mul", y, call("sigmoid", call("neg", call("mul", x, y)))))


def _binary_cross_entropy_backward(builder: Builder, node: Node) -> str | None:
    """(g, x, target, weight, reduction): no quotient is larger than 1e12."""
    cotangent, value, target, weight, reduction = node.args
    x = load(1)
    spread = call("maximum", call("mul", call("sub", 1.0, x), x), 1e-12)
    slope = call("div", call("sub", x, load(2)), spread)
    operands = [cotangent, value, target]
    if weight is not None:
        operands.append(weight)
        slope = call("mul", slope, load(3))
    return _of_cotangent(builder, node, slope, operands, reduction)


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
    found = _classes(builder, value.name, target.name)
    if found is None or weight is not None:
        return None
    if reduction == NONE and node.type.shape != builder.shape(target.name):
        return None  # torch 2.13 loses the shape of a batch whose size is symbolic
    (axis, classes, right), shape = found, builder.shape(value.name)
    one = builder.shape(right)
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
    each = _unless_ignored(each, load(2), classes, ignored)
    return _of_rows(builder, node, each, operands, one, reduction, (right, float(ignored)))


def _nll_forward(builder: Builder, node: Node) -> str | None:
    """nll_loss_forward(x, target, weight, reduction, ignore_index): the loss, and its divisor.

    x holds logarithms of probabilities; NaN for a number that is no class, as in cross entropy.
    """
    value, target, weight, reduction, ignored = node.args
    found = _classes(builder, value.name, target.name)
    if found is None or not builder.floating(*([weight.name] if weight is not None else [])):
        return None
    axis, classes, right = found
    shape, one = builder.shape(value.name), builder.shape(right)
    of_class = call("eq", index(axis), load(1))
    known = call("where", call("ne", load(0), float(ignored)), 1.0, 0.0)
    operands, factor = [value.name, right], load(0)
    wide = TensorType(shape, torch.float32)
    if weight is not None:
        operands.append(_per_class(builder, weight.name, axis, len(shape)))
        factor = call("mul", factor, load(2))
        mine = builder.map(call("where", of_class, load(2), 0.0), operands, wide, "weights")
        share = builder.reduce("sum", mine, (axis,), True, label="weight")
        known = call("mul", known, load(1))
    picks = call("where", of_class, factor, 0.0)
    picked = builder.map(picks, operands, wide, "picked")
    score = builder.reduce("sum", picked, (axis,), True, label="score")
    each = _unless_ignored(call("neg", load(0)), load(1), classes, ignored)
    rows = builder.map(each, [score, right], TensorType(one, torch.float32), "each")
    if reduction == NONE:
        nothing = builder.map(const(0.0), [], TensorType((), node.type.dtype), "none")
        return builder.several(r0=rows, r1=nothing)
    axes = tuple(range(len(one)))
    total = builder.reduce("sum", rows, axes, False, label="sum", split=False)
    counted = [right] if weight is None else [right, share]
    counts = builder.map(known, counted, TensorType(one, torch.float32), "counts")
    number = builder.reduce("sum", counts, axes, False, label="count", split=False)
    loss = builder.apply("div", total, number, label="mean") if reduction == MEAN else total
    return builder.several(r0=loss, r1=number)


def _nll_backward(builder: Builder, node: Node) -> str | None:
    """nll_loss_backward(g, x, target, weight, reduction, ignore_index, divisor)."""
    cotangent, value, target, weight, reduction, ignored, divisor = node.args
    found = _classes(builder, value.name, target.name)
    if found is None or not builder.floating(cotangent.name):
        return None
    axis, _, right = found
    one = builder.shape(right)
    given = cotangent.name
    if builder.shape(given):
        given = builder.view("reshape", given, one, label="given")
    operands, slope = [given, right], call("neg", load(0))
    if reduction == MEAN:
        operands.append(divisor.name)
        slope = call("div", slope, load(2))
    if weight is not None:
        operands.append(_per_class(builder, weight.name, axis, len(node.type.shape)))
        slope = call("mul", slope, load(len(operands) - 1))
    there = call("where", call("eq", index(axis), load(1)), slope, 0.0)
    there = call("where", call("eq", load(1), float(ignored)), 0.0, there)
    operands[1] = builder.view("expand", right, node.type.shape, label="classes")
    return builder.map(there, operands, node.type)


def _classes(builder: Builder, value: str, target: str) -> tuple[int, int, str] | None:
    """The axis of the classes, how many there are, and the right one of each row."""
    shape = builder.shape(value)
    axis = min(1, len(shape) - 1)
    classes = shape[axis] if shape else 0
    if not isinstance(classes, int) or not 0 < classes <= MOST_CLASSES:
        return None
    if builder.type(target).dtype is not torch.int64 or not builder.floating(value):
        return None
    one = (*shape[:axis], 1, *shape[axis + 1 :])
    return axis, classes, builder.view("reshape", target, one, label="right")


def _per_class(builder: Builder, weight: str, axis: int, rank: int) -> str:
    shape = tuple(builder.shape(weight)[0] if i == axis else 1 for i in range(rank))
    return builder.view("reshape", weight, shape, label="weight")


def _unless_ignored(each: Expr, right: Expr, classes: int, ignored: int) -> Expr:
    """The loss of a row; none if it is ignored, NaN if its number is no class."""
    is_class = call("where", call("lt", right, 0.0), 0.0, call("lt", right, float(classes)))
    each = call("where", is_class, each, float("nan"))
    return call("where", call("eq", right, float(ignored)), 0.0, each)


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


def _glu_backward(builder: Builder, node: Node) -> str | None:
    """glu_backward(g, x, dim): of the values the gate, of the gates the rest of the product."""
    cotangent, value, dim = node.args
    if not builder.floating(cotangent.name, value.name):
        return None
    axis, half = dim % len(node.type.shape), builder.shape(cotangent.name)[dim]
    kept = builder.slice(value.name, axis, 0, half, label="value")
    gate = builder.slice(value.name, axis, half, half, label="gate")
    operands = [cotangent.name, kept, gate]
    share = call("sigmoid", load(2))
    of_value = call("mul", load(0), share)
    of_gate = call("mul", call("mul", of_value, call("sub", 1.0, share)), load(1))
    type = TensorType(builder.shape(cotangent.name), node.type.dtype)
    parts = [builder.map(e, operands, type, "part") for e in (of_value, of_gate)]
    return builder.cat(parts, axis)


LOWERINGS: dict[str, Lowering] = {
    "mse_loss_backward": _gradient(lambda x, y: call("mul", 2.0, _difference(x, y))),
    "smooth_l1_loss_backward": _gradient(_smooth_l1_slope),
    "huber_loss_backward": _gradient(lambda x, y, delta: _bounded(_difference(x, y), delta)),
    "soft_margin_loss": _loss(_soft_margin),
    "soft_margin_loss_backward": _gradient(_soft_margin_slope),
    "binary_cross_entropy": _binary_cross_entropy,
    "binary_cross_entropy_backward": _binary_cross_entropy_backward,
    "nll_loss_forward": _nll_forward,
    "nll_loss_backward": _nll_backward,
    "nll_loss2d_forward": _nll_forward,
    "nll_loss2d_backward": _nll_backward,
    "glu_backward": _glu_backward,
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
