"""Normalisations: GroupNorm, LayerNorm, InstanceNorm, BatchNorm (both modes), RMSNorm.

And their gradients. With n the normalised operand and g the cotangent times the weight, that of the
operand is rstd * (g - mean(g) - n * mean(g * n)): two sums in one reading, of numbers that were
centred before they are multiplied, whatever the mean is. Where long groups of channels share
statistics, sums over the space of each channel come first, and the gradients of weight and bias are
made of the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernelwright.expand.builder import Builder, Lowering, count
from kernelwright.expand.reductions import centred_squares
from kernelwright.expr import call, load, size
from kernelwright.graph import Dim, Node, Ref, Shape, TensorType, as_dim

# Elements of a group that stay in registers, so that the sums of channels may be a second reading;
# of longer groups, which are read twice in any case, they are the first.
SHORT_GROUP = 1 << 14


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


def _normalise(
    builder: Builder, value: str, axes: Sequence[int], eps: float
) -> tuple[str, str, str]:
    """(x - mean) / sqrt(var + eps) over axes, the mean, and the inverse of the root."""
    average, centred, total = centred_squares(builder, value, axes)
    scale = _inverse_deviation(builder, total, size(count(builder.shape(value), axes)), eps)
    return builder.apply("mul", centred, scale, label="normal"), average, scale


def _inverse_deviation(builder: Builder, total: str, divisor: object, eps: float) -> str:
    expr = call("rsqrt", call("add", call("div", load(0), divisor), eps))  # type: ignore[arg-type]
    return builder.map(expr, [total], builder.type(total), "rstd")


def _group_norm(builder: Builder, node: Node) -> str | None:
    value, groups, weight, bias, eps, _ = node.args
    if not builder.floating(value.name):
        return None
    split = _in_groups(builder, value.name, groups)
    normal, _, _ = _normalise(builder, split, _behind(builder, split, 2), eps)
    result = _affine(builder, normal, weight, bias, _group_channels(builder, split), "affine")
    return builder.view("reshape", result, node.type.shape)


def _native_group_norm(builder: Builder, node: Node) -> str | None:
    """(x, weight, bias, samples, channels, space, groups, eps): the result, mean and rstd."""
    value, weight, bias, _, _, _, groups, eps = node.args
    if not builder.floating(value.name):
        return None
    split = _wide(builder, _in_groups(builder, value.name, groups))
    normal, average, scale = _normalise(builder, split, _behind(builder, split, 2), eps)
    result = _affine(builder, normal, weight, bias, _group_channels(builder, split), "affine")
    return builder.several(r0=result, r1=average, r2=scale)


def _in_groups(builder: Builder, value: str, groups: int) -> str:
    batch, channels, *rest = builder.shape(value)
    shape = (batch, groups, as_dim(channels // groups), *rest)
    return builder.view("reshape", value, shape, label="groups")


def _group_channels(builder: Builder, split: str) -> Shape:
    """The shape of what there is one of for each channel, beside groups of them."""
    _, groups, channels, *rest = builder.shape(split)
    return (1, groups, channels, *(1 for _ in rest))


def _behind(builder: Builder, value: str, first: int) -> tuple[int, ...]:
    return tuple(range(first, len(builder.shape(value))))


def _wide(builder: Builder, value: str) -> str:
    """For statistics that are kept: nothing of them is rounded on the way."""
    return builder.cast(value, torch.float32)


def _layer_norm(builder: Builder, node: Node) -> str | None:
    value, normalised, weight, bias, eps = node.args[:5]
    if not builder.floating(value.name):
        return None
    axes = _behind(builder, value.name, len(builder.shape(value.name)) - len(normalised))
    normal, _, _ = _normalise(builder, value.name, axes, eps)
    return _affine(builder, normal, weight, bias, tuple(normalised))


def _native_layer_norm(builder: Builder, node: Node) -> str | None:
    """(x, normalised, weight, bias, eps): the result, mean and rstd."""
    value, normalised, weight, bias, eps = node.args
    if not builder.floating(value.name):
        return None
    axes = _behind(builder, value.name, len(builder.shape(value.name)) - len(normalised))
    normal, average, scale = _normalise(builder, _wide(builder, value.name), axes, eps)
    result = _affine(builder, normal, weight, bias, tuple(normalised), "affine")
    return builder.several(r0=result, r1=average, r2=scale)


def _rms_norm(builder: Builder, node: Node) -> str | None:
    value, normalised, weight, eps = node.args
    if not builder.floating(value.name):
        return None
    normal, _ = _by_root_mean_square(builder, value.name, len(normalised), eps, node.type.dtype)
    return _affine(builder, normal, weight, None, tuple(normalised))


def _fused_rms_norm(builder: Builder, node: Node) -> str | None:
    """As rms_norm, with the inverse of the root."""
    value, normalised, weight, eps = node.args
    if not builder.floating(value.name):
        return None
    wide = _wide(builder, value.name)
    normal, scale = _by_root_mean_square(builder, wide, len(normalised), eps, node.type.dtype)
    result = _affine(builder, normal, weight, None, tuple(normalised), "affine")
    return builder.several(r0=result, r1=scale)


def _by_root_mean_square(
    builder: Builder, value: str, axes: int, eps: float | None, dtype: torch.dtype
) -> tuple[str, str]:
    """x / sqrt(mean(x^2) + eps) over so many last axes, and the inverse of the root."""
    shape = builder.shape(value)
    over = _behind(builder, value, len(shape) - axes)
    squares = builder.apply("square", value, label="squares")
    total = builder.reduce("sum", squares, over, True, label="square_sum")
    eps = torch.finfo(dtype).eps if eps is None else eps
    scale = _inverse_deviation(builder, total, size(count(shape, over)), eps)
    return builder.apply("mul", value, scale, label="normal"), scale


def _channels(builder: Builder, value: str) -> Shape:
    shape = builder.shape(value)
    return (1, shape[1], *(1 for _ in shape[2:]))


def _instance_norm(builder: Builder, node: Node) -> str | None:
    value, weight, bias, running_mean, running_var, use_input_stats, _, eps, _ = node.args
    if not builder.floating(value.name) or not use_input_stats or running_mean or running_var:
        return None
    rank = len(builder.shape(value.name))
    normal, _, _ = _normalise(builder, value.name, tuple(range(2, rank)), eps)
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
) -> tuple[str, str, str, str]:
    """Normalised by the batch's own statistics: (result, mean, squared deviations, rstd)."""
    average, centred, total = centred_squares(builder, value, _but_channels(builder, value))
    scale = _inverse_deviation(builder, total, size(_per_channel(builder, value)), eps)
    normal = builder.apply("mul", centred, scale, label="normal")
    result = _affine(builder, normal, weight, bias, _channels(builder, value), "affine")
    return result, average, total, scale


def _but_channels(builder: Builder, value: str) -> tuple[int, ...]:
    return (0, *_behind(builder, value, 2))


def _per_channel(builder: Builder, value: str) -> Dim:
    """How many elements a channel has."""
    return count(builder.shape(value), _but_channels(builder, value))


def _batch_norm_without_statistics(builder: Builder, node: Node) -> str | None:
    """_native_batch_norm_legit.no_stats(x, w, b, training, momentum, eps)."""
    value, weight, bias, training, _, eps = node.args
    if not builder.floating(value.name) or not training:
        return None
    result, average, _, scale = _by_batch(builder, value.name, weight, bias, eps)
    return builder.several(r0=result, r1=average, r2=scale)


def _batch_norm_train(builder: Builder, node: Node) -> str | None:
    """Batch statistics, and the running ones updated with the unbiased variance."""
    value, weight, bias, running_mean, running_var, training, momentum, eps = node.args
    if not builder.floating(value.name) or not training or running_mean is None:
        return None
    result, average, total, scale = _by_batch(builder, value.name, weight, bias, eps)
    number = _per_channel(builder, value.name)
    unbiased = builder.apply("div", total, size(as_dim(number - 1)), label="unbiased")
    return builder.several(
        r0=result,
        r1=average,
        r2=scale,
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


# ---- gradients -------------------------------------------------------------------------------


def _normal(builder: Builder, value: str, average: str, scale: str) -> str:
    """What the forward had normalised, made again of the operand and the statistics."""
    expr = call("mul", call("sub", load(0), load(1)), load(2))
    type = TensorType(builder.shape(value), torch.float32)
    return builder.map(expr, [value, average, scale], type, "normal")


def _weighted(builder: Builder, cotangent: str, weight: Ref | None, shape: Shape) -> str:
    if weight is None:
        return cotangent
    viewed = builder.view("reshape", weight.name, shape, label="weight")
    return builder.apply("mul", cotangent, viewed, label="weighted")


def _centred_gradient(
    builder: Builder, scale: str, cotangent: str, normal: str, sums: tuple[str, str], number: Dim
) -> str:
    """scale * (g - mean(g) - normal * mean(g * normal)), of the two sums."""
    means = [call("div", load(i), size(number)) for i in (3, 4)]
    expr = call("sub", call("sub", load(1), means[0]), call("mul", load(2), means[1]))
    operands = [scale, cotangent, normal, *sums]
    type = TensorType(builder.shape(normal), torch.float32)
    return builder.map(call("mul", load(0), expr), operands, type, "gradient")


def _sum(builder: Builder, value: str, axes: Sequence[int], label: str) -> str:
    """The sum, axes kept; over none the value itself."""
    return builder.reduce("sum", value, axes, True, label=label) if axes else value


def _native_layer_norm_backward(builder: Builder, node: Node) -> str | None:
    """(g, x, normalised, mean, rstd, weight, bias, wanted): gradients of x, weight and bias."""
    cotangent, value, normalised, average, scale, weight, _, _ = node.args
    names = [cotangent.name, value.name, average.name, scale.name]
    if not builder.floating(*names):
        return None
    first = len(builder.shape(value.name)) - len(normalised)
    given = _wide(builder, cotangent.name)
    normal = _normal(builder, *names[1:])
    each = builder.apply("mul", given, normal, label="products")
    outer = tuple(range(first))
    scaled = _weighted(builder, given, weight, tuple(normalised))
    own = builder.apply("mul", scaled, normal, label="own") if weight is not None else each
    axes = _behind(builder, value.name, first)
    sums = _sum(builder, scaled, axes, "sum"), _sum(builder, own, axes, "own_sum")
    number = count(builder.shape(value.name), axes)
    return builder.several(
        r0=_centred_gradient(builder, scale.name, scaled, normal, sums, number),
        r1=_sum(builder, each, outer, "weight"),
        r2=_sum(builder, given, outer, "bias"),
    )


def _fused_rms_norm_backward(builder: Builder, node: Node) -> str | None:
    """(g, x, normalised, rstd, weight, wanted): gradients of x and weight."""
    cotangent, value, normalised, scale, weight, _ = node.args
    if not builder.floating(cotangent.name, value.name, scale.name):
        return None
    first = len(builder.shape(value.name)) - len(normalised)
    given = _wide(builder, cotangent.name)
    normal = builder.apply("mul", _wide(builder, value.name), scale.name, label="normal")
    each = builder.apply("mul", given, normal, label="products")
    scaled = _weighted(builder, given, weight, tuple(normalised))
    own = builder.apply("mul", scaled, normal, label="own") if weight is not None else each
    axes = _behind(builder, value.name, first)
    average = call("div", load(3), size(count(builder.shape(value.name), axes)))
    expr = call("mul", load(0), call("sub", load(1), call("mul", load(2), average)))
    operands = [scale.name, scaled, normal, _sum(builder, own, axes, "own_sum")]
    type = TensorType(builder.shape(value.name), torch.float32)
    gradient = builder.map(expr, operands, type, "gradient")
    return builder.several(r0=gradient, r1=_sum(builder, each, tuple(range(first)), "weight"))


def _native_group_norm_backward(builder: Builder, node: Node) -> str | None:
    """(g, x, mean, rstd, weight, samples, channels, space, groups, wanted)."""
    cotangent, value, average, scale, weight, _, _, _, groups, _ = node.args
    names = [cotangent.name, value.name, average.name, scale.name]
    if not builder.floating(*names):
        return None
    given, split = (_in_groups(builder, _wide(builder, n), groups) for n in names[:2])
    shape = builder.shape(split)
    of_group: Shape = (*shape[:2], *(1 for _ in shape[2:]))
    statistics = [builder.view("reshape", n, of_group, label="statistic") for n in names[2:]]
    normal = _normal(builder, split, *statistics)
    each = builder.apply("mul", given, normal, label="products")
    one, space = _group_channels(builder, split), _behind(builder, split, 3)
    scaled, number = _weighted(builder, given, weight, one), count(shape, (2, *space))
    if isinstance(number, int) and number <= SHORT_GROUP:
        own = _weighted(builder, each, weight, one)
        of_groups = [_sum(builder, v, (2, *space), "group_sum") for v in (scaled, own)]
        of_channels, over = [given, each], (0, *space)
    else:
        of_channels, over = [_sum(builder, v, space, "sum") for v in (given, each)], (0,)
        weighted = [_weighted(builder, v, weight, one) for v in of_channels]
        of_groups = [_sum(builder, v, (2,), "group_sum") for v in weighted]
    sums = of_groups[0], of_groups[1]
    return builder.several(
        r0=_centred_gradient(builder, statistics[1], scaled, normal, sums, number),
        r1=_sum(builder, of_channels[1], over, "weight"),
        r2=_sum(builder, of_channels[0], over, "bias"),
    )


def _native_batch_norm_backward(builder: Builder, node: Node) -> str | None:
    """(g, x, weight, running mean, running var, mean, rstd, training, eps, wanted)."""
    cotangent, value, weight, *running, average, scale, training, eps = node.args[:9]
    kept = (average, scale) if training else running
    return _by_channel(builder, cotangent, value, weight, training, eps, *kept)


def _cudnn_batch_norm_backward(builder: Builder, node: Node) -> str | None:
    """(x, g, weight, running mean, running var, mean, rstd, eps, reserve)."""
    value, cotangent, weight, _, _, average, scale, eps, _ = node.args
    return _by_channel(builder, cotangent, value, weight, True, eps, average, scale)


def _by_channel(
    builder: Builder,
    cotangent: Ref,
    value: Ref,
    weight: Ref | None,
    training: bool,
    eps: float,
    average: Ref | None,
    spread: Ref | None,
) -> str | None:
    """`spread` is rstd in training, and else the running variance, of which that is made."""
    if average is None or spread is None:
        return None
    if not builder.floating(cotangent.name, value.name, average.name, spread.name):
        return None
    shape, axes = _channels(builder, value.name), _but_channels(builder, value.name)
    mean, scale = (builder.view("reshape", s.name, shape, label="kept") for s in (average, spread))
    if not training:
        scale = _inverse_deviation(builder, scale, 1.0, eps)
    given = _wide(builder, cotangent.name)
    normal = _normal(builder, value.name, mean, scale)
    each = builder.apply("mul", given, normal, label="products")
    sums = _sum(builder, given, axes, "sum"), _sum(builder, each, axes, "own_sum")
    factor = _weighted(builder, scale, weight, shape)
    gradient = builder.apply("mul", given, factor, label="gradient")
    if training:
        number = _per_channel(builder, value.name)
        gradient = _centred_gradient(builder, factor, given, normal, sums, number)
    return builder.several(r0=gradient, r1=sums[1], r2=sums[0])


LOWERINGS: dict[str, Lowering] = {
    "group_norm": _group_norm,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "instance_norm": _instance_norm,
    "batch_norm": _batch_norm_eval,
    "native_group_norm": _native_group_norm,
    "native_group_norm_backward": _native_group_norm_backward,
    "native_layer_norm": _native_layer_norm,
    "native_layer_norm_backward": _native_layer_norm_backward,
    "_fused_rms_norm": _fused_rms_norm,
    "_fused_rms_norm_backward": _fused_rms_norm_backward,
    "native_batch_norm_backward": _native_batch_norm_backward,
    "batch_norm_backward": _native_batch_norm_backward,
    "cudnn_batch_norm_backward": _cudnn_batch_norm_backward,
    "_native_batch_norm_legit_functional": _batch_norm_train,
    "_native_batch_norm_legit.no_stats": _batch_norm_without_statistics,
    "_native_batch_norm_legit_no_training": _frozen_batch_norm,
}
