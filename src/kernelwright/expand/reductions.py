"""Reductions, and the composites made of them: mean, variance, norms, softmax, logsumexp."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernelwright.expand.builder import FLOATS, INTEGERS, Builder, Lowering, count, widens
from kernelwright.expand.pointwise import MOST_PLACES
from kernelwright.expr import call, index, load, size
from kernelwright.graph import Call, Node, Ref, TensorType, as_dim, broadcast


def _axes(builder: Builder, value: str, dims: Any) -> tuple[int, ...]:
    """Which axes are meant; none for a tensor of no axes, however it is asked for."""
    rank = len(builder.shape(value))
    if dims is None or dims == () or rank == 0:
        return tuple(range(rank))
    listed = dims if isinstance(dims, tuple) else (dims,)
    return tuple(sorted({d % rank for d in listed}))


def _plain(kind: str) -> Lowering:
    """sum, amax, amin, prod: (x, dims=all, keepdim=False)."""

    def lower(builder: Builder, node: Node) -> str | None:
        value = node.args[0].name
        if kind == "sum" and _counts_for_floats(builder, node):
            number = call("where", load(0), 1.0, 0.0)
            type = TensorType(builder.shape(value), torch.float32)
            value = builder.map(number, [value], type, "counted")
        elif not builder.floating(value) or node.type.dtype != builder.type(value).dtype:
            return None
        dims, keepdim = _dims_keepdim(node)
        axes = _axes(builder, value, dims)
        return builder.reduce(kind, value, axes, keepdim) if axes else builder.copied(value)

    return lower


def _counts_for_floats(builder: Builder, node: Node) -> bool:
    """Whether truths are counted, few enough for float32, to divide or multiply such numbers by."""
    users = [builder.graph[name] for name in builder.graph.users[node.name]]
    floats = all(u.op in ("div", "mul") and u.type.dtype in FLOATS[:1] for u in users)
    operand = builder.type(node.args[0].name)
    few = isinstance(operand.numel, int) and operand.numel <= MOST_PLACES
    returned = node.name in builder.graph.results
    return operand.dtype is torch.bool and few and floats and not returned


def _dims_keepdim(node: Node) -> tuple[Any, bool]:
    """Reductions over axes are (x, dims, keepdim, ...); the others, over everything, (x, ...)."""
    over_axes = "." in node.op or node.op in ("amax", "amin")
    return (node.args[1], bool(node.args[2])) if over_axes else (None, False)


def _values(kind: str) -> Lowering:
    """max.dim and min.dim: the values, and the first place at which there is such a one."""

    def lower(builder: Builder, node: Node) -> str | None:
        value, dim, keepdim = node.args
        if not builder.floating(value.name) or not builder.shape(value.name):
            return None
        axes = _axes(builder, value.name, dim)
        values = builder.reduce(kind, value.name, axes, keepdim, label="values")
        extent = builder.shape(value.name)[axes[0]]
        if not isinstance(extent, int) or not 1 < extent <= MOST_PLACES:
            return builder.several(r0=values)
        return builder.several(r0=values, r1=_first(builder, value.name, values, axes, keepdim))

    return lower


def _first(builder: Builder, value: str, values: str, axes: tuple[int, ...], keepdim: bool) -> str:
    """The first place of each row with its largest or smallest element, or with a NaN."""
    shape = builder.shape(value)
    one = tuple(1 if a in axes else d for a, d in enumerate(shape))
    wanted = builder.view("reshape", values, one, label="wanted")
    found = call("maximum", call("eq", load(0), load(1)), call("ne", load(0), load(0)))
    place = call("where", found, index(axes[0]), float("inf"))
    type = TensorType(shape, torch.float32)
    places = builder.map(place, [value, wanted], type, "places")
    first = builder.reduce("min", places, axes, keepdim, label="first")
    return whole_numbers(builder, first)


def whole_numbers(builder: Builder, value: str) -> str:
    """Integers, as ATen makes them of numbers in float32."""
    asked = Call("torch.ops.aten._to_copy.default", (Ref(value),), (("dtype", torch.int64),))
    type = TensorType(builder.shape(value), torch.int64)
    return builder.ask(asked, type, "indices", INTEGERS)


def mean(
    builder: Builder, value: str, axes: Sequence[int], keepdim: bool, label: str | None
) -> str:
    total = builder.reduce("sum", value, axes, keepdim, label="sum")
    return builder.apply("div", total, size(count(builder.shape(value), axes)), label=label)


def _mean(builder: Builder, node: Node) -> str | None:
    value = node.args[0].name
    if not builder.floating(value) or not widens(builder.type(value).dtype, node.type.dtype):
        return None
    value = builder.cast(value, node.type.dtype)
    dims, keepdim = _dims_keepdim(node)
    axes = _axes(builder, value, dims)
    return mean(builder, value, axes, keepdim, None) if axes else builder.copied(value)


def centred_squares(builder: Builder, value: str, axes: Sequence[int]) -> tuple[str, str, str]:
    """(mean, x - mean, sum of squares of that), all with keepdim: the stable two-step variance."""
    average = mean(builder, value, axes, True, "mean")
    centred = builder.apply("sub", value, average, label="centred")
    squares = builder.apply("square", centred, label="squares")
    return average, centred, builder.reduce("sum", squares, axes, True, label="square_sum")


def _variance(root: bool, with_mean: bool = False) -> Lowering:
    """var and std, and with the mean: (x, dims, unbiased or correction, keepdim)."""

    def lower(builder: Builder, node: Node) -> str | None:
        value, dims, correction, _ = node.args
        axes = _axes(builder, value.name, dims)
        correction = 1 if correction is None else correction
        divisor = as_dim(count(builder.shape(value.name), axes) - int(correction))
        if not builder.floating(value.name) or not axes or int(correction) != correction:
            return None
        if isinstance(divisor, int) and divisor <= 0:
            return None
        average, _, total = centred_squares(builder, value.name, axes)
        result = builder.apply("div", total, size(divisor), label="variance")
        if root:
            result = builder.apply("sqrt", result, label="deviation")
        if with_mean:
            return builder.several(r0=result, r1=average)
        return builder.view("reshape", result, node.type.shape)

    return lower


def _vector_norm(builder: Builder, node: Node) -> str | None:
    """linalg_vector_norm(x, ord, dims, keepdim, dtype) for ord 1, 2 and infinity."""
    value, order, dims, keepdim = node.args[0].name, node.args[1], node.args[2], node.args[3]
    if not builder.floating(value) or node.type.dtype != builder.type(value).dtype:
        return None
    axes = _axes(builder, value, dims)
    if not axes:
        return None
    if order == 2:
        squares = builder.apply("square", value, label="squares")
        total = builder.reduce("sum", squares, axes, keepdim, label="square_sum")
        return builder.apply("sqrt", total)
    kind = {1: "sum", float("inf"): "max"}.get(order)
    if kind is None:
        return None
    return builder.reduce(kind, builder.apply("abs", value, label="abs"), axes, keepdim)


def shifted_exponentials(
    builder: Builder, value: str, axes: Sequence[int], safe: bool
) -> tuple[str, str, str, str]:
    """(largest, x - largest, exp of that, its sum). `safe` keeps infinities for logsumexp."""
    largest = builder.reduce("max", value, axes, True, label="max")
    if safe:
        largest = builder.apply("finite_or_zero", largest, label="shift")
    shifted = builder.apply("sub", value, largest, label="shifted")
    powers = builder.apply("exp_below", shifted, label="exp")
    return largest, shifted, powers, builder.reduce("sum", powers, axes, True, label="exp_sum")


def _softmax(finish: Callable[[Builder, str, str, str], str]) -> Lowering:
    def lower(builder: Builder, node: Node) -> str | None:
        value, dim = node.args[0].name, node.args[1]
        if not builder.floating(value) or not widens(builder.type(value).dtype, node.type.dtype):
            return None
        value = builder.cast(value, node.type.dtype)
        axes = _axes(builder, value, dim)
        if not axes:
            return None
        _, shifted, powers, total = shifted_exponentials(builder, value, axes, safe=False)
        return finish(builder, shifted, powers, total)

    return lower


def _divide(builder: Builder, shifted: str, powers: str, total: str) -> str:
    """By a reciprocal for each row: the sum is from 1 to the number of elements, or NaN."""
    scale = builder.apply("reciprocal", total, label="reciprocal_sum")
    return builder.apply("mul", powers, scale)


def _subtract_log(builder: Builder, shifted: str, powers: str, total: str) -> str:
    log = builder.apply("log", total, label="log_sum")
    return builder.apply("sub", shifted, log)


def _safe_softmax(builder: Builder, node: Node) -> str | None:
    """_safe_softmax(x, dim, dtype): rows of nothing but -inf are zero."""
    value, dim = node.args[0].name, node.args[1]
    axes = _axes(builder, value, dim)
    if not builder.floating(value) or not widens(builder.type(value).dtype, node.type.dtype):
        return None
    wide = builder.cast(value, node.type.dtype)
    _, _, powers, total = shifted_exponentials(builder, wide, axes, safe=True)
    share = call("where", call("eq", load(0), 0.0), 0.0, call("reciprocal", load(0)))
    scale = builder.map(share, [total], builder.type(total), "reciprocal_sum")
    return builder.apply("mul", powers, scale)


def _softmax_gradient(finish: Callable[[Builder, str, str, Sequence[int]], str]) -> Lowering:
    """(g, result, dim, type of the operand): `finish` makes float32 of g and the result."""

    def lower(builder: Builder, node: Node) -> str | None:
        cotangent, result, dim = node.args[0].name, node.args[1].name, node.args[2]
        if not builder.floating(cotangent, result):
            return None
        axes = _axes(builder, result, dim)
        given, made = (builder.cast(v, torch.float32) for v in (cotangent, result))
        gradient = finish(builder, given, made, axes)
        return builder.map(load(0), [gradient], node.type)

    return lower


def _total(builder: Builder, value: str, axes: Sequence[int]) -> str:
    return builder.reduce("sum", value, axes, True, label="sum") if axes else value


def _of_shares(builder: Builder, cotangent: str, shares: str, axes: Sequence[int]) -> str:
    """y * (g - sum(g * y))."""
    products = builder.apply("mul", cotangent, shares, label="products")
    expr = call("mul", load(1), call("sub", load(0), load(2)))
    operands = [cotangent, shares, _total(builder, products, axes)]
    return builder.map(expr, operands, builder.type(shares), "gradient")


def _of_logarithms(builder: Builder, cotangent: str, logs: str, axes: Sequence[int]) -> str:
    """g - exp(y) * sum(g)."""
    expr = call("sub", load(0), call("mul", call("exp", load(1)), load(2)))
    operands = [cotangent, logs, _total(builder, cotangent, axes)]
    return builder.map(expr, operands, builder.type(logs), "gradient")


def _logsumexp(builder: Builder, node: Node) -> str | None:
    value, dims, _ = node.args
    if not builder.floating(value.name):
        return None
    axes = _axes(builder, value.name, dims)
    if not axes:
        return None
    shift, _, _, total = shifted_exponentials(builder, value.name, axes, safe=True)
    log = builder.apply("log", total, label="log_sum")
    return builder.view("reshape", builder.apply("add", log, shift, label="kept"), node.type.shape)


def _cosine_similarity(builder: Builder, node: Node) -> str | None:
    """(x, y, dim, eps): both brought to length one first, as torch does, so that neither overflows.

    A length below eps counts as eps.
    """
    first, second, dim, eps = node.args
    values = [first.name, second.name]
    shape = broadcast(*(builder.shape(v) for v in values))
    if not builder.floating(*values) or not shape:
        return None
    axes = (dim % len(shape),)
    units = []
    for i, value in enumerate(values):
        wide = builder.view("expand", value, shape, label=f"operand{i}")
        squares = builder.apply("square", wide, label="squares")
        total = builder.reduce("sum", squares, axes, True, label="square_sum")
        length = builder.apply("sqrt", total, label="length")
        bounded = builder.apply("maximum", length, eps, label="bounded")
        units.append(builder.apply("div", wide, bounded, label="unit"))
    return builder.reduce("sum", builder.apply("mul", *units, label="products"), axes, False)


LOWERINGS: dict[str, Lowering] = {
    "sum": _plain("sum"),
    "sum.dim_IntList": _plain("sum"),
    "amax": _plain("max"),
    "amin": _plain("min"),
    "max": _plain("max"),
    "min": _plain("min"),
    "prod": _plain("prod"),
    "prod.dim_int": _plain("prod"),
    "max.dim": _values("max"),
    "min.dim": _values("min"),
    "mean": _mean,
    "mean.dim": _mean,
    "var.dim": _variance(root=False),
    "var.correction": _variance(root=False),
    "std.dim": _variance(root=True),
    "std.correction": _variance(root=True),
    "var_mean.dim": _variance(root=False, with_mean=True),
    "var_mean.correction": _variance(root=False, with_mean=True),
    "std_mean.dim": _variance(root=True, with_mean=True),
    "std_mean.correction": _variance(root=True, with_mean=True),
    "linalg_vector_norm": _vector_norm,
    "cosine_similarity": _cosine_similarity,
    "softmax": _softmax(_divide),
    "log_softmax": _softmax(_subtract_log),
    "_softmax": _softmax(_divide),
    "_safe_softmax": _safe_softmax,
    "_log_softmax": _softmax(_subtract_log),
    "_softmax_backward_data": _softmax_gradient(_of_shares),
    "_log_softmax_backward_data": _softmax_gradient(_of_logarithms),
    "logsumexp": _logsumexp,
}
