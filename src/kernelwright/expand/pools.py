"""Pooling: windows, and an ordinary reduction over them.

Max and average pooling become a `window` primitive (each axis turns into places and what a window
has at each) and a `reduce` over the windows; adaptive pooling too where its windows are all alike.
So pointwise work on either side shares a kernel with them. What eager makes of padding: the largest
of a window never comes from there, an average counts it or does not, as asked. Indices stay with
ATen, and so do adaptive windows of different sizes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from kernelwright.expand.builder import Builder, Lowering
from kernelwright.expand.reductions import mean
from kernelwright.expr import Expr, call, const, index, load
from kernelwright.graph import Node, Slide

SPATIAL = {"1d": 1, "2d": 2, "3d": 3}


def _max_pool(values_alone: bool) -> Lowering:
    """(x, kernel, stride, padding, dilation, ceil_mode); used indices stay with ATen."""

    def lower(builder: Builder, node: Node) -> str | None:
        value, kernel, stride, padding, dilation, _ = node.args
        slides = _slides(builder, node, kernel, stride, padding, dilation)
        if slides is None or _wants_places(builder, node):
            return None
        label = None if values_alone else "values"
        pooled = _reduced(builder, node, "max", value.name, slides, -math.inf, label)
        return pooled if values_alone else builder.several(r0=pooled)

    return lower


def _avg_pool(builder: Builder, node: Node) -> str | None:
    """(x, kernel, stride, padding, ceil_mode, count_include_pad, divisor)."""
    value, kernel, stride, padding, _, counts_padding = node.args[:6]
    divisor = node.args[6] if len(node.args) > 6 else None
    slides = _slides(builder, node, kernel, stride, padding, 1)
    if slides is None:
        return None
    total = _reduced(builder, node, "sum", value.name, slides, 0.0, "sum")
    if divisor is not None:
        return builder.apply("div", total, float(divisor))
    factors = [_counted(builder, node, value.name, s, counts_padding) for s in slides]
    expr = factors[0]
    for factor in factors[1:]:
        expr = call("mul", expr, factor)
    return builder.map(call("div", load(0), expr), [total], node.type)


def _adaptive(kind: str) -> Lowering:
    """(x, sizes): every place has the window of its share, if all shares are the same."""

    def lower(builder: Builder, node: Node) -> str | None:
        value, sizes = node.args[0].name, node.args[1]
        shape = builder.shape(value)
        first = len(shape) - len(sizes)
        if not builder.floating(value) or (kind == "max" and _wants_places(builder, node)):
            return None
        if kind == "sum" and all(s == 1 for s in sizes):
            return mean(builder, value, tuple(range(first, len(shape))), True, None)
        kernel = []
        for size, extent in zip(sizes, shape[first:], strict=True):
            if not isinstance(extent, int) or not isinstance(size, int) or extent % size:
                return None
            kernel.append(extent // size)
        slides = [Slide(first + i, k, k) for i, k in enumerate(kernel)]
        if kind == "max":
            pooled = _reduced(builder, node, kind, value, slides, -math.inf, "values")
            return builder.several(r0=pooled)
        total = _reduced(builder, node, kind, value, slides, 0.0, "sum")
        return builder.apply("div", total, float(math.prod(kernel)))

    return lower


def _wants_places(builder: Builder, node: Node) -> bool:
    """Whether somebody uses the indices: ATen has the values on the way to them."""
    users = [builder.graph[name] for name in builder.graph.users[node.name]]
    return any(user.op == "getitem" and user.args[1] == 1 for user in users)


def _slides(
    builder: Builder, node: Node, kernel: Any, stride: Any, padding: Any, dilation: Any
) -> list[Slide] | None:
    """How the windows move along the last axes; no stride means that of the kernel."""
    value = node.args[0].name
    shape, spatial = builder.shape(value), SPATIAL[node.op.split("pool")[1][:2]]
    first = len(shape) - spatial
    if not builder.floating(value) or not all(isinstance(d, int) for d in shape[first:]):
        return None
    given = (kernel, stride or kernel, dilation, padding)
    numbers = zip(*(_each(n, spatial) for n in given), strict=True)
    return [Slide(first + i, *of_axis) for i, of_axis in enumerate(numbers)]


def _each(value: Any, spatial: int) -> Sequence[int]:
    """A number for every axis; a list of one is that number."""
    given = value if isinstance(value, tuple | list) else (value,)
    return tuple(given) * spatial if len(given) == 1 else given


def _reduced(
    builder: Builder,
    node: Node,
    kind: str,
    value: str,
    slides: Sequence[Slide],
    outside: float,
    label: str | None,
) -> str:
    """The windows of a pool combined; the shape of the captured node says how many there are."""
    places = tuple(node.type.shape[s.axis] for s in slides)
    rank = len(builder.shape(value))
    seen = builder.window(value, places, slides, outside, label="windows")
    axes = range(rank, rank + len(slides))
    return builder.reduce(kind, seen, axes, keepdim=False, label=label)


def _counted(builder: Builder, node: Node, value: str, slide: Slide, counts_padding: bool) -> Expr:
    """By how many places of an axis eager divides: those up to the end of the padding, or real."""
    places, extent = node.type.shape[slide.axis], builder.shape(value)[slide.axis]
    assert isinstance(places, int) and isinstance(extent, int)
    end = extent + slide.before if counts_padding else extent
    begin = -slide.before if counts_padding else 0
    starts = [place * slide.step - slide.before for place in range(places)]
    counts = {min(start + slide.size, end) - max(start, begin) for start in starts}
    if len(counts) == 1:
        return const(counts.pop())
    start = call("sub", call("mul", index(slide.axis), slide.step), slide.before)
    stop = call("minimum", call("add", start, slide.size), end)
    return call("sub", stop, call("maximum", start, begin))


LOWERINGS: dict[str, Lowering] = {
    **{f"max_pool{n}d": _max_pool(values_alone=True) for n in (1, 2, 3)},
    **{f"max_pool{n}d_with_indices": _max_pool(values_alone=False) for n in (1, 2, 3)},
    **{f"avg_pool{n}d": _avg_pool for n in (1, 2, 3)},
    **{f"adaptive_avg_pool{n}d": _adaptive("sum") for n in (1, 2, 3)},
    **{f"adaptive_max_pool{n}d": _adaptive("max") for n in (1, 2, 3)},
}
