"""Normalisations: GroupNorm, LayerNorm, InstanceNorm, BatchNorm (both modes), RMSNorm."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernelwright.expand.builder import Builder, Lowering, count
from kernelwright.expand.reductions import centred_squares
from kernelwright.expr import call, load, size
from kernelwright.graph import Dim, Node, Ref, Shape, TensorType, as_dim


def _affine(
    builder: Builder,
    normal: str,
    weight: Ref | None,
    bias: Ref | None,
    shape: Shape,
    label: str | None = None,
) -> str:
    """normal * weight + bias, with the parameters viewed so that they broadcast."""
    operands, expr = [normal], load(0)
    if weight is not None:
        operands.append(builder.view("reshape", weight.name, shape, label="weight"))
        expr = call("mul", expr, load(len(operands) - 1))
    if bias is not None:
        operands.append(builder.view("reshape", bias.name, shape, label="bias"))
        expr = call("add", expr, load(len(operands) - 1))
    return builder.map(expr, operands, builder.type(normal), label)


def _normalise(builder: Builder, value: str, axes: Sequence[int], eps: float) -> str:
    """(x - mean) / sqrt(var + eps) over axes."""
    _, centred, total = centred_squares(builder, value, axes)
    scale = _inverse_deviation(builder, total, size(count(builder.shape(value), axes)), eps)
    return builder.apply("mul", centred, scale, label="normal")


def _inverse_deviation(builder: Builder, total: str, divisor: object, eps: float) -> str:
    expr = call("rsqrt", call("add", call("div", load(0), divisor), eps))  # type: ignore[arg-type]
    return builder.map(expr, [total], builder.type(total), "rstd")


def _group_norm(builder: Builder, node: Node) -> str | None:
    value, groups, weight, bias, eps, _ = node.args
    if not builder.floating(value.name):
        return None
    batch, channels, *rest = builder.shape(value.name)
    shape = (batch, groups, as_dim(channels // groups), *rest)
    split = builder.view("reshape", value.name, shape, label="groups")
    normal = _normalise(builder, split, tuple(range(2, len(shape))), eps)
    affine_shape: Shape = (1, groups, shape[2], *(1 for _ in rest))
    result = _affine(builder, normal, weight, bias, affine_shape, "affine")
    return builder.view("reshape", result, node.type.shape)


def _layer_norm(builder: Builder, node: Node) -> str | None:
    value, normalised, weight, bias, eps = node.args[:5]
    if not builder.floating(value.name):
        return None
    rank = len(builder.shape(value.name))
    axes = tuple(range(rank - len(normalised), rank))
    normal = _normalise(builder, value.name, axes, eps)
    return _affine(builder, normal, weight, bias, tuple(normalised))


def _rms_norm(builder: Builder, node: Node) -> str | None:
    value, normalised, weight, eps = node.args
    if not builder.floating(value.name):
        return None
    shape = builder.shape(value.name)
    axes = tuple(range(len(shape) - len(normalised), len(shape)))
    eps = torch.finfo(node.type.dtype).eps if eps is None else eps
    squares = builder.apply("square", value.name, label="squares")
    total = builder.reduce("sum", squares, axes, True, label="square_sum")
    scale = _inverse_deviation(builder, total, size(count(shape, axes)), eps)
    normal = builder.apply("mul", value.name, scale, label="normal")
    return _affine(builder, normal, weight, None, tuple(normalised))


def _channels(builder: Builder, value: str) -> Shape:
    shape = builder.shape(value)
    return (1, shape[1], *(1 for _ in shape[2:]))


def _instance_norm(builder: Builder, node: Node) -> str | None:
    value, weight, bias, running_mean, running_var, use_input_stats, _, eps, _ = node.args
    if not builder.floating(value.name) or not use_input_stats or running_mean or running_var:
        return None
    rank = len(builder.shape(value.name))
    normal = _normalise(builder, value.name, tuple(range(2, rank)), eps)
    return _affine(builder, normal, weight, bias, _channels(builder, value.name))


def _batch_norm_eval(builder: Builder, node: Node) -> str | None:
    value, weight, bias, running_mean, running_var, training, _, eps = node.args[:8]
    if not builder.floating(value.name) or training or running_mean is None:
        return None
    shape = _channels(builder, value.name)
    average = builder.view("reshape", running_mean.name, shape, label="running_mean")
    variance = builder.view("reshape", running_var.name, shape, label="running_var")
    centred = builder.apply("sub", value.name, average, label="centred")
    scale = _inverse_deviation(builder, variance, 1.0, eps)
    normal = builder.apply("mul", centred, scale, label="normal")
    return _affine(builder, normal, weight, bias, shape)


def _by_batch(
    builder: Builder, value: str, weight: Ref | None, bias: Ref | None, eps: float
) -> tuple[str, str, str, Dim]:
    """Normalised by the batch's own statistics: (result, mean, squared deviations, how many)."""
    shape = builder.shape(value)
    axes = (0, *range(2, len(shape)))
    number = count(shape, axes)
    average, centred, total = centred_squares(builder, value, axes)
    scale = _inverse_deviation(builder, total, size(number), eps)
    normal = builder.apply("mul", centred, scale, label="normal")
    result = _affine(builder, normal, weight, bias, _channels(builder, value), "affine")
    return result, average, total, number


def _batch_norm_without_statistics(builder: Builder, node: Node) -> str | None:
    """_native_batch_norm_legit.no_stats(x, w, b, training, momentum, eps)."""
    value, weight, bias, training, _, eps = node.args
    if not builder.floating(value.name) or not training:
        return None
    return builder.several(r0=_by_batch(builder, value.name, weight, bias, eps)[0])


def _batch_norm_train(builder: Builder, node: Node) -> str | None:
    """Batch statistics, and the running ones updated with the unbiased variance."""
    value, weight, bias, running_mean, running_var, training, momentum, eps = node.args
    if not builder.floating(value.name) or not training or running_mean is None:
        return None
    result, average, total, number = _by_batch(builder, value.name, weight, bias, eps)
    unbiased = builder.apply("div", total, size(as_dim(number - 1)), label="unbiased")
    return builder.several(
        r0=result,
        r3=_running(builder, running_mean.name, average, momentum, "running_mean"),
        r4=_running(builder, running_var.name, unbiased, momentum, "running_var"),
    )


def _running(builder: Builder, old: str, new: str, momentum: float, label: str) -> str:
    flat = builder.view("reshape", new, builder.shape(old), label=f"{label}_batch")
    expr = call("add", call("mul", load(0), 1 - momentum), call("mul", load(1), momentum))
    return builder.map(
        expr, [old, flat], TensorType(builder.shape(old), builder.type(old).dtype), label
    )


def _frozen_batch_norm(builder: Builder, node: Node) -> str | None:
    """_native_batch_norm_legit_no_training(x, w, b, mean, var, momentum, eps), as a map."""
    value, weight, bias, running_mean, running_var, momentum, eps = node.args
    args = (value, weight, bias, running_mean, running_var, False, momentum, eps)
    inner = Node("normalised", node.op, args, node.type, node.origin, node.payload, node.sources)
    result = _batch_norm_eval(builder, inner)
    return None if result is None else builder.several(r0=result)


LOWERINGS: dict[str, Lowering] = {
    "group_norm": _group_norm,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "instance_norm": _instance_norm,
    "batch_norm": _batch_norm_eval,
    "_native_batch_norm_legit_functional": _batch_norm_train,
    "_native_batch_norm_legit.no_stats": _batch_norm_without_statistics,
    "_native_batch_norm_legit_no_training": _frozen_batch_norm,
}
