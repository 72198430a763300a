"""Pooling: windows, and an ordinary reduction over them.

Max and average pooling become a `window` primitive (each axis turns into places and what a window
has at each) and a `reduce` over the windows; adaptive pooling too where its windows are all alike.
So pointwise work on either side shares a kernel with them. What eager makes of padding: the largest
of a window never comes from there, an average counts it or does not, as asked. Indices stay with
ATen, and so do adaptive windows of different sizes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch

from kernelwright.expand.builder import Builder, Lowering
from kernelwright.expand.pointwise import MOST_PLACES
from kernelwright.expand.reductions import mean
from kernelwright.expr import Expr, call, const, index, load
from kernelwright.graph import Dim, Node, Shape, Slide, TensorType, product

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
    number = _divisor(slides, node.type.shape, builder.shape(value.name), counts_padding)
    return builder.map(call("div", load(0), number), [total], node.type)


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
    value = node.args[1 if node.op.endswith("_backward") else 0].name
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


def _divisor(slides: Sequence[Slide], places: Shape, extents: Shape, counts_padding: bool) -> Expr:
    """What the sum of a window is divided by."""
    counts = (_counted(places[s.axis], extents[s.axis], s, counts_padding) for s in slides)
    return _product(counts)


def _product(factors: Iterable[Expr]) -> Expr:
    return reduce(lambda x, y: call("mul", x, y), factors)


def _counted(places: Dim, extent: Dim, slide: Slide, counts_padding: bool) -> Expr:
    """By how many places of an axis eager divides: those up to the end of the padding, or real."""
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


# ---- gradients -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Turned:
    """An axis of a pool's operand, as steps of its windows and what lies within a step.

    Place i is step * part + rest. Of the windows that may reach the places of a part, the last has
    the number part + ahead, and there are `reach`, each one number before the next.
    """

    axis: int
    extent: int
    slide: Slide

    @property
    def parts(self) -> int:
        return -(-self.extent // self.slide.step)

    @property
    def ahead(self) -> int:
        return (self.slide.step - 1 + self.slide.before) // self.slide.step

    @property
    def reach(self) -> int:
        behind = (self.slide.size - 1 - self.slide.before) // self.slide.step
        return self.ahead + behind + 1


class _Spread:
    """The results of a pool, seen from the places of its operand that they were made of.

    A value (n, c, h, w) becomes (n, c, parts, rests, parts, rests, reach, reach); `sum` brings what
    is made of such values back to the operand's shape.
    """

    def __init__(self, builder: Builder, node: Node, slides: Sequence[Slide]) -> None:
        self.builder, self.shape = builder, node.type.shape
        extents = [(s, self.shape[s.axis]) for s in slides]
        self.turned = [_Turned(s.axis, n, s) for s, n in extents if isinstance(n, int)]
        self.first = self.turned[0].axis
        self.outer = self.shape[: self.first]

    @property
    def wide(self) -> Shape:
        pairs = [d for t in self.turned for d in (t.parts, t.slide.step)]
        return (*self.outer, *pairs, *(t.reach for t in self.turned))

    def of(self, value: str, outside: float) -> str:
        slides = [Slide(t.axis, t.reach, 1, -1, -t.ahead) for t in self.turned]
        places = tuple(t.parts for t in self.turned)
        seen = self.builder.window(value, places, slides, outside, label="reaching")
        apart = [d for t in self.turned for d in (t.parts, 1)]
        shape = (*self.outer, *apart, *(t.reach for t in self.turned))
        parted = self.builder.view("reshape", seen, shape, label="parted")
        return self.builder.view("expand", parted, self.wide, label="spread")

    def place(self, number: int) -> Expr:
        """Where an element stands along an axis of the operand."""
        part, rest = (index(self.first + 2 * number + i) for i in range(2))
        return call("add", call("mul", part, self.turned[number].slide.step), rest)

    def covered(self, number: int) -> Expr:
        """Whether the window reaches it: by its place in that."""
        turned, slide = self.turned[number], self.turned[number].slide
        first = slide.before - slide.step * turned.ahead
        last = first + slide.step * turned.reach - 1
        if first >= 0 and last < slide.size:
            return const(1.0)
        rest = index(self.first + 2 * number + 1)
        back = index(self.first + 2 * len(self.turned) + number)
        place = call("add", call("add", rest, call("mul", back, slide.step)), first)
        return call("mul", call("ge", place, 0.0), call("lt", place, slide.size))

    def sum(self, expr: Expr, operands: Sequence[str], dtype: torch.dtype) -> str:
        type = TensorType(self.wide, dtype)
        each = self.builder.map(expr, operands, type, "each")
        rank = len(self.wide)
        axes = range(rank - len(self.turned), rank)
        total = self.builder.reduce("sum", each, axes, keepdim=False, label="sum")
        whole = (*self.outer, *(t.parts * t.slide.step for t in self.turned))
        value = self.builder.view("reshape", total, whole, label="whole")
        *others, last = self.turned
        for t in others:
            value = self.builder.slice(value, t.axis, 0, t.extent, label="inside")
        return self.builder.slice(value, last.axis, 0, last.extent)


def _avg_pool_backward(builder: Builder, node: Node) -> str | None:
    """(g, x, kernel, stride, padding, ceil_mode, count_include_pad, divisor)."""
    cotangent, value, kernel, stride, padding, _, counts_padding, divisor = node.args
    slides = _slides(builder, node, kernel, stride, padding, 1)
    if slides is None or not builder.floating(cotangent.name, value.name):
        return None
    given = cotangent.name
    type = builder.type(given)
    number = const(divisor or 0.0)
    if divisor is None:
        number = _divisor(slides, type.shape, builder.shape(value.name), counts_padding)
    shared = builder.map(call("div", load(0), number), [given], type, "shares")
    spread = _Spread(builder, node, slides)
    covered = _product(spread.covered(i) for i in range(len(slides)))
    each = call("where", covered, load(0), 0.0)
    return spread.sum(each, [spread.of(shared, 0.0)], node.type.dtype)


def _max_pool_backward(builder: Builder, node: Node) -> str | None:
    """(g, x, kernel, stride, padding, dilation, ceil_mode, indices), which count places of x."""
    cotangent, value, kernel, stride, padding, dilation, _, places = node.args
    slides = _slides(builder, node, kernel, stride, padding, dilation)
    if slides is None or not builder.floating(cotangent.name, value.name):
        return None
    extents = [builder.shape(value.name)[s.axis] for s in slides]
    alone = all(s.spread == 1 for s in slides)
    if not alone or not 0 < product(extents) <= MOST_PLACES:
        return None
    spread = _Spread(builder, node, slides)
    place = spread.place(0)
    for number, extent in list(enumerate(extents))[1:]:
        place = call("add", call("mul", place, float(str(extent))), spread.place(number))
    operands = [spread.of(cotangent.name, 0.0), spread.of(places.name, -1.0)]
    chosen = call("where", call("eq", load(1), place), load(0), 0.0)
    return spread.sum(chosen, operands, node.type.dtype)


def _adaptive_avg_backward(builder: Builder, node: Node) -> str | None:
    """(g, x): every place has its share of the window that it is in, if all are alike."""
    cotangent, shape = node.args[0].name, node.type.shape
    sizes, spatial = builder.shape(cotangent), SPATIAL[node.op.split("pool")[1][:2]]
    first = len(shape) - spatial
    kernel: list[int] = []
    for size, extent in zip(sizes[first:], shape[first:], strict=True):
        if not isinstance(extent, int) or not isinstance(size, int) or extent % size:
            return None
        kernel.append(extent // size)
    if not builder.floating(cotangent):
        return None
    apart = [d for size in sizes[first:] for d in (size, 1)]
    parted = builder.view("reshape", cotangent, (*sizes[:first], *apart), label="parted")
    pairs = [d for size, k in zip(sizes[first:], kernel, strict=True) for d in (size, k)]
    wide = builder.view("expand", parted, (*sizes[:first], *pairs), label="wide")
    whole = builder.view("reshape", wide, shape, label="whole")
    return builder.apply("div", whole, float(math.prod(kernel)))


LOWERINGS: dict[str, Lowering] = {
    **{f"avg_pool{n}d_backward": _avg_pool_backward for n in (2, 3)},
    **{f"max_pool{n}d_with_indices_backward": _max_pool_backward for n in (2, 3)},
    **{f"_adaptive_avg_pool{n}d_backward": _adaptive_avg_backward for n in (2, 3)},
    **{f"_adaptive_avg_pool{n}d": _adaptive("sum") for n in (2, 3)},
    **{f"max_pool{n}d": _max_pool(values_alone=True) for n in (1, 2, 3)},
    **{f"max_pool{n}d_with_indices": _max_pool(values_alone=False) for n in (1, 2, 3)},
    **{f"avg_pool{n}d": _avg_pool for n in (1, 2, 3)},
    **{f"adaptive_avg_pool{n}d": _adaptive("sum") for n in (1, 2, 3)},
    **{f"adaptive_max_pool{n}d": _adaptive("max") for n in (1, 2, 3)},
}
