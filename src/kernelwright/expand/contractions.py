"""Contractions: index maps over one loop nest, parted from their bias.

Linear, mm, bmm, matmul, einsum and the convolutions all become one primitive (graph.Contraction).
The bias is a map, which a fused kernel adds for free; a library call that nothing follows gets it
back (plan/biases.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from kernelwright.expand.builder import WEIGHTS, Builder, Lowering
from kernelwright.expr import const
from kernelwright.graph import (
    BIAS,
    Affine,
    Call,
    Contraction,
    Dim,
    Node,
    Ref,
    Shape,
    TensorType,
    product,
)

BIAS_SLOT, STRIDE = 2, 3
PLANES = 3  # axes of space that a convolution may have
Index = Sequence[Affine]


class Nest:
    """The axes of a loop nest, made while a contraction is described."""

    def __init__(self) -> None:
        self.sizes: list[Dim] = []

    def axis(self, size: Dim) -> Affine:
        """The place along an axis of its own."""
        self.sizes.append(size)
        return Affine(((len(self.sizes) - 1, 1),))

    def axes(self, shape: Sequence[Dim]) -> tuple[Affine, ...]:
        return tuple(self.axis(d) for d in shape)

    def contraction(
        self,
        left: Index,
        right: Index,
        out: Index,
        call: Call,
        biased: Call | None = None,
        by_strides: bool = False,
    ) -> Contraction:
        places = (tuple(left), tuple(right), tuple(out))
        return Contraction(tuple(self.sizes), *places, call, biased, by_strides)


# ---- products ------------------------------------------------------------------------------------


def _linear(builder: Builder, node: Node) -> str | None:
    left, right = builder.shape(node.args[0].name), builder.shape(node.args[1].name)
    nest = Nest()
    rows, columns, depth = nest.axes(left[:-1]), nest.axes(right[:-1]), nest.axis(right[-1])
    places = ((*rows, depth), (*columns, depth), (*rows, *columns))
    return _with_bias(builder, node, nest, places, spatial=0)


def _with_bias(
    builder: Builder,
    node: Node,
    nest: Nest,
    places: tuple[Index, Index, Index],
    spatial: int,
) -> str | None:
    """(x, W, bias, ...) becomes a contraction and a broadcast add.

    `spatial` counts the axes behind the channels, over which the bias is the same.
    """
    payload, bias = node.payload, node.args[BIAS_SLOT]
    assert isinstance(payload, Call)
    operands = [node.args[0].name, node.args[1].name]
    if not builder.floating(*operands):
        return None
    plain, biased = (_with_slot(payload, value) for value in (None, BIAS))
    contraction = nest.contraction(*places, plain, biased, by_strides=spatial == 0)
    if bias is None:
        return builder.contract(contraction, operands)
    product = builder.contract(contraction, operands, label="product")
    shape = (*builder.shape(bias.name), *(1 for _ in range(spatial)))
    viewed = builder.view("reshape", bias.name, shape, label="bias")
    return builder.apply("add", product, viewed)


def _with_slot(call: Call, bias: Ref | None) -> Call:
    args = tuple(bias if i == BIAS_SLOT else a for i, a in enumerate(call.args))
    return Call(call.target, args, call.kwargs)


def product_of(left: Shape, right: Shape, call: Call, biased: Call | None = None) -> Contraction:
    """The contraction of torch.matmul: the last axis by the last but one, the others broadcast."""
    nest = Nest()
    depth = nest.axis(left[-1])
    rows = [nest.axis(left[-2])] if len(left) > 1 else []
    columns = [nest.axis(right[-1])] if len(right) > 1 else []
    heads = [s[:-2] for s in (left, right)]
    outer = max(map(len, heads))
    padded = [(*(1,) * (outer - len(h)), *h) for h in heads]
    batch: list[tuple[Affine, Affine, Affine]] = []
    for a, b in zip(*padded, strict=True):
        place = nest.axis(b if a == 1 else a)
        batch.append((Affine() if a == 1 else place, Affine() if b == 1 else place, place))
    ours, theirs = ([p[i] for p in batch][outer - len(heads[i]) :] for i in (0, 1))
    turned = [depth, *columns] if columns else [depth]
    result = [*(p[2] for p in batch), *rows, *columns]
    places = ([*ours, *rows, depth], [*theirs, *turned], result)
    return nest.contraction(*places, call, biased, by_strides=True)


def _product(builder: Builder, node: Node) -> str | None:
    left, right = (a.name for a in node.args[:2])
    if not builder.floating(left, right):
        return None
    assert isinstance(node.payload, Call)
    made = product_of(builder.shape(left), builder.shape(right), node.payload)
    return builder.contract(made, [left, right])


def _added(plain: str, biased: str) -> Lowering:
    """addmm and baddbmm: beta * bias + alpha * (left @ right)."""

    def lower(builder: Builder, node: Node) -> str | None:
        bias, left, right, beta, alpha = node.args
        if not builder.floating(left.name, right.name, bias.name):
            return None
        operands = (left, right)
        with_bias = Call(biased, (BIAS, *operands)) if alpha == beta == 1 else None
        shapes = (builder.shape(left.name), builder.shape(right.name))
        made = product_of(*shapes, Call(plain, operands), with_bias)
        value = builder.contract(made, [left.name, right.name], label="product")
        if alpha != 1:
            value = builder.apply("mul", value, const(float(alpha)), label="scaled")
        if beta == 0:  # not even a NaN of the bias is seen
            return builder.view("reshape", value, node.type.shape)
        if beta == 1:
            return builder.apply("add", value, bias.name)
        scaled = builder.apply("mul", bias.name, const(float(beta)), label="bias")
        return builder.apply("add", value, scaled)

    return lower


def _einsum(builder: Builder, node: Node) -> str | None:
    """Operands two by two, from the left; every letter once in each, none in one alone.

    Where two have nothing to sum up, they are multiplied by a map, which others compute on the way.
    """
    equation, operands = str(node.args[0]).replace(" ", ""), node.args[1]
    if "->" not in equation or "." in equation:
        return None
    names = [o.name for o in operands]
    inputs, out = equation.split("->")
    texts = inputs.split(",")
    if not builder.floating(*names) or not _pairs_up(texts, out):
        return None
    sizes: dict[str, Dim] = {}
    for text, name in zip(texts, names, strict=True):
        for x, d in zip(text, builder.shape(name), strict=True):
            if sizes.setdefault(x, d) != d:
                return None  # a size of one that broadcasts
    einsum = _Einsum(builder, sizes, out)
    made: tuple[str, str] = (texts[0], names[0])
    for i, other in enumerate(zip(texts[1:], names[1:], strict=True), 1):
        made = einsum.pair(made, other, set(out).union(*texts[i + 1 :]), i == len(texts) - 1)
    text, value = made
    if text == out:
        return value
    return builder.view("permute", value, node.type.shape, [text.index(x) for x in out])


def _pairs_up(texts: list[str], out: str) -> bool:
    """Whether each step sums over what both of its operands have, and nothing else."""
    if len(texts) < 2 or any(len(set(text)) != len(text) for text in (*texts, out)):
        return False
    made = set(texts[0])
    for i, text in enumerate(texts[1:], 1):
        kept = set(out).union(*texts[i + 1 :])
        if (made ^ set(text)) - kept:
            return False
        made = (made | set(text)) & kept
    return made == set(out)


@dataclass(frozen=True)
class _Einsum:
    """`sizes` are those of the letters, `out` is what the last pair is to give."""

    builder: Builder
    sizes: dict[str, Dim]
    out: str

    def pair(
        self, left: tuple[str, str], right: tuple[str, str], kept: set[str], last: bool
    ) -> tuple[str, str]:
        """Two operands as one: its letters and its value."""
        (ours, _), (theirs, _) = left, right
        order = self.out if last else ours + theirs
        letters = [x for x in dict.fromkeys(order) if x in kept and x in ours + theirs]
        if all(x in kept for x in ours + theirs):
            text = "".join(letters)
            values = [self.laid_out(operand, text) for operand in (left, right)]
            label = None if text == self.out and last else "product"
            return text, self.builder.apply("mul", *values, label=label)
        # The product's own order: what both have, the left's rows, the right's columns.
        own = [x for x in letters if x in ours and x in theirs]
        own += [x for x in letters if x not in theirs] + [x for x in letters if x not in ours]
        return self.contracted(left, right, "".join(own), last)

    def contracted(
        self, left: tuple[str, str], right: tuple[str, str], text: str, last: bool
    ) -> tuple[str, str]:
        """As torch.matmul of views: what has to be copied for it is then seen, and stored so."""
        (ours, _), (theirs, _) = left, right
        batch = [x for x in text if x in ours and x in theirs]
        rows, columns = ([x for x in text if x not in of] for of in (theirs, ours))
        depth = [x for x in ours if x in theirs and x not in text]
        first = self.matrices(left, batch, rows, depth)
        second = self.matrices(right, batch, depth, columns)
        call = Call("torch.ops.aten.matmul.default", (Ref(first), Ref(second)))
        made = product_of(self.builder.shape(first), self.builder.shape(second), call)
        shape = (*self.shape(batch), self.count(rows), self.count(columns))
        own = self.shape(text)
        if last and text == self.out and own == shape:
            return text, self.builder.contract(made, [first, second])
        value = self.builder.contract(made, [first, second], label="product", shape=shape)
        label = None if last and text == self.out else "whole"
        return text, self.builder.view("reshape", value, own, label=label)

    def matrices(
        self, operand: tuple[str, str], batch: list[str], down: list[str], across: list[str]
    ) -> str:
        """An operand with its letters as a batch of matrices."""
        value = self.laid_out(operand, "".join([*batch, *down, *across]))
        shape = (*self.shape(batch), self.count(down), self.count(across))
        return self.builder.view("reshape", value, shape, label="matrices")

    def shape(self, letters: Sequence[str]) -> Shape:
        return tuple(self.sizes[x] for x in letters)

    def count(self, letters: Sequence[str]) -> Dim:
        return product(list(self.shape(letters)))

    def laid_out(self, operand: tuple[str, str], text: str) -> str:
        """An operand with its letters in this order, and axes of one for the others."""
        own, value = operand
        there = "".join(x for x in text if x in own)
        if there != own:
            dims = [own.index(x) for x in there]
            value = self.builder.view("permute", value, self.shape(there), dims, label="turned")
        wide = tuple(self.sizes[x] if x in own else 1 for x in text)
        return self.builder.view("reshape", value, wide, label="wide")


# ---- convolutions --------------------------------------------------------------------------------


def _convolution(spatial: int) -> Lowering:
    """(x, W, bias, stride, padding, dilation, groups), with or without a batch."""

    def lower(builder: Builder, node: Node) -> str | None:
        _, _, _, stride, padding, dilation, groups = node.args
        x, w = builder.shape(node.args[0].name), builder.shape(node.args[1].name)
        if groups > 1 and not isinstance(w[0], int):
            return None
        steps, spread = _each(stride, spatial), _each(dilation, spatial)
        window = [int(str(d)) for d in w[2:]]
        pads = _pads(padding, window, spread)
        nest = Nest()
        samples = nest.axes(x[: len(x) - spatial - 1])
        group, filters, channels = nest.axis(groups), nest.axis(w[0] // groups), nest.axis(w[1])
        places = nest.axes(node.type.shape[-spatial:])
        taps = nest.axes(window)
        left = [_join(group, channels, w[1])]
        for place, tap, step, by, pad in zip(places, taps, steps, spread, pads, strict=True):
            left.append(Affine((*_times(place, step), *_times(tap, by)), -pad))
        out = _join(group, filters, w[0] // groups)
        indices = ((*samples, *left), (out, channels, *taps), (*samples, out, *places))
        return _with_bias(builder, node, nest, indices, spatial)

    return lower


def _transposed(spatial: int) -> Lowering:
    """(x, W, bias, stride, padding, output_padding, groups, dilation): what x[i] adds to where."""

    def lower(builder: Builder, node: Node) -> str | None:
        _, _, _, stride, padding, _, groups, dilation = node.args
        x, w = builder.shape(node.args[0].name), builder.shape(node.args[1].name)
        if groups > 1 and not isinstance(w[0], int):
            return None
        steps, spread, pads = (_each(v, spatial) for v in (stride, dilation, padding))
        nest = Nest()
        samples = nest.axes(x[: len(x) - spatial - 1])
        group, filters, channels = nest.axis(groups), nest.axis(w[1]), nest.axis(w[0] // groups)
        places, taps = nest.axes(x[-spatial:]), nest.axes(w[2:])
        out = [
            Affine((*_times(place, step), *_times(tap, by)), -pad)
            for place, tap, step, by, pad in zip(places, taps, steps, spread, pads, strict=True)
        ]
        inside = _join(group, channels, w[0] // groups)
        indices = (
            (*samples, inside, *places),
            (inside, filters, *taps),
            (*samples, _join(group, filters, w[1]), *out),
        )
        return _with_bias(builder, node, nest, indices, spatial)

    return lower


def _each(value: Any, spatial: int) -> list[int]:
    """A number for each axis; torch lets one stand for all."""
    listed = list(value) if isinstance(value, tuple | list) else [value]
    return listed * spatial if len(listed) == 1 else listed


def _pads(padding: Any, window: list[int], spread: list[int]) -> list[int]:
    """Places before the first; `same` has the odd one behind the last."""
    if padding == "same":
        return [by * (size - 1) // 2 for size, by in zip(window, spread, strict=True)]
    return [0] * len(window) if padding == "valid" else _each(padding, len(window))


def _times(place: Affine, step: int) -> tuple[tuple[int, int], ...]:
    return tuple((axis, by * step) for axis, by in place.terms)


def _join(outer: Affine, inner: Affine, size: Dim) -> Affine:
    """Two axes as one: groups, and the channels of each; of a free number there is one group."""
    return Affine((*_times(outer, size if isinstance(size, int) else 1), *inner.terms))


def by_name(node: Node) -> Node:
    """convolution(x, W, bias, stride, padding, dilation, transposed, output_padding, groups).

    It is one of the operators that people call, with a batch.
    """
    x, w, bias, stride, padding, dilation, transposed, output_padding, groups = node.args
    spatial, args = len(stride), tuple[Any, ...]()
    if transposed:
        args = (x, w, bias, stride, padding, output_padding, groups, dilation)
        op, overload = f"conv_transpose{spatial}d", "default" if spatial == 1 else "input"
    else:
        args = (x, w, bias, stride, padding, dilation, groups)
        op, overload = f"conv{spatial}d", "default"
    return replace(node, op=op, args=args, payload=Call(f"torch.ops.aten.{op}.{overload}", args))


def _any_convolution(builder: Builder, node: Node) -> str | None:
    if not 1 <= len(node.args[STRIDE]) <= PLANES:
        return None
    named = by_name(node)
    return LOWERINGS[named.op](builder, named)


def _convolution_backward(builder: Builder, node: Node) -> str | None:
    """(g, x, W, bias sizes, stride, padding, dilation, transposed, output padding, groups, wanted).

    Each gradient by itself, so that those vanish that nobody reads. That of x is a convolution the
    other way round, that of the bias a sum; that of W is a product whose depth are all places, for
    which the library is asked.
    """
    cotangent, value, weight, _, *options, wanted = node.args
    names = [cotangent.name, value.name, weight.name]
    shapes = [builder.shape(n) for n in names]
    spatial = len(shapes[0]) - 2
    if not builder.floating(*names) or not 1 <= spatial <= PLANES:
        return None
    assert isinstance(node.payload, Call)
    found = {}
    if wanted[0]:
        turned = _turned(shapes, options)
        if turned is None:
            return None
        args = (cotangent, weight, None, *turned)
        type = TensorType(shapes[1], node.type.dtype)
        asked = by_name(replace(node, args=args, type=type))
        made = builder.instead(asked, LOWERINGS[asked.op], label="input")
        if made is None:
            return None
        found["r0"] = made
    if wanted[1]:
        mask = (False, True, False)
        asked_for = Call(node.payload.target, (*node.payload.args[:-1], mask))
        type = TensorType(shapes[2], node.type.dtype)
        all_three = builder.ask(asked_for, type, "gradients", WEIGHTS)
        one = Call("getitem", (Ref(all_three), 1))
        found["r1"] = builder.ask(one, type, "weight", WEIGHTS)
    if wanted[2]:
        axes = [0, *range(2, spatial + 2)]
        found["r2"] = builder.reduce("sum", names[0], axes, False, label="bias")
    return builder.several(**found)


def _turned(shapes: Sequence[Shape], options: Sequence[Any]) -> tuple[Any, ...] | None:
    """The options of the convolution that gives the gradient of another one's operand."""
    *each, transposed, _, groups = options
    spatial = len(shapes[0]) - 2
    # One number stands for all axes, as the padding does that a word was given for.
    stride, padding, dilation = (tuple(x) * (spatial if len(x) == 1 else 1) for x in each)
    if transposed:
        return stride, padding, dilation, False, (0,) * spatial, groups
    numbers = zip(*(s[2:] for s in shapes), stride, padding, dilation, strict=True)
    beyond = []
    for made, given, size, step, pad, by in numbers:
        if not all(isinstance(n, int) for n in (made, given, size)):
            return None
        beyond.append(given - ((made - 1) * step - 2 * pad + by * (size - 1) + 1))
    return stride, padding, dilation, True, tuple(beyond), groups


LOWERINGS: dict[str, Lowering] = {
    "convolution": _any_convolution,
    "convolution_backward": _convolution_backward,
    "linear": _linear,
    **{f"conv{n}d": _convolution(n) for n in (1, 2, 3)},
    **{f"conv{n}d.padding": _convolution(n) for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": _transposed(n) for n in (1, 2, 3)},
    "mm": _product,
    "bmm": _product,
    "matmul": _product,
    "mv": _product,
    "addmm": _added("torch.ops.aten.mm.default", "torch.addmm"),
    "baddbmm": _added("torch.ops.aten.bmm.default", "torch.baddbmm"),
    "einsum": _einsum,
}
