"""Two biases become one: b + c is summed before it meets the large tensor.

The sum is taken at run time, so both parameters stay what they are and may change at any time; it
is evaluated inside the fused kernel, where each element of b + c is one addition beside a load, so
no launch is added. What is saved is an addition for each element of x, or a whole map after a
library call that takes a bias anyway.
"""

from __future__ import annotations

from kernelwright.graph import Ref, Shape, TensorType, broadcast, lined_up, product
from kernelwright.pattern import (
    Builder,
    Exactness,
    Match,
    Num,
    Param,
    Pat,
    Rule,
    Var,
    all_of,
)
from kernelwright.rules.conditions import floating, unit_alpha

CONVOLUTIONS = tuple(
    f"{op}{rank}d{overload}"
    for rank in (1, 2, 3)
    for op, overload in (("conv", ""), ("conv", ".padding"), ("conv_transpose", ""))
)


def _small(match: Match) -> str | None:
    """b + c must be one bias of the size of the larger, and x must keep its shape under it."""
    b, c, x = (match.type(name).shape for name in ("b", "c", "x"))
    both = broadcast(b, c)
    if both is None or product(both) not in (product(b), product(c)):
        return (
            f"b {_text(b)} and c {_text(c)} lie along different axes, so b + c is larger than both"
        )
    if match.root.type.shape != x:
        return f"b and c enlarge x from {_text(x)} to {_text(match.root.type.shape)}"
    if len(both) == len(x) and both[0] != 1:
        return "b or c has the batch dimension of x, so b + c is no smaller than the sum it saves"
    return None


def _sum(match: Match, builder: Builder) -> Ref:
    b, c = match.type("b"), match.type("c")
    shape = broadcast(b.shape, c.shape)
    assert shape is not None
    bias = builder.node("add", (match["b"], match["c"], 1), TensorType(shape, b.dtype))
    return builder.node("add", (match["x"], bias, 1), match.root.type)


def _per_channel(match: Match) -> str | None:
    """c must hold one number for each output channel, and nothing along any other axis."""
    out, c = match.type("product").shape, match.type("c").shape
    if match.root.type.shape != out:
        return f"c {_text(c)} enlarges {_text(out)}"
    axis = _channel_axis(match)
    wanted = tuple(size if i == axis else 1 for i, size in enumerate(out))
    if lined_up(c, len(out)) != wanted:
        return f"c {_text(c)} is not one number for each of the {out[axis]} channels"
    return None


def _channel_axis(match: Match) -> int:
    """The last axis of a linear, the one before the window's axes of a convolution."""
    node = match.node("product")
    window = len(match.type("W").shape) - 2
    return len(node.type.shape) - 1 - window


def _into_product(match: Match, builder: Builder) -> Ref:
    node, c = match.node("product"), match.type("c")
    channels = TensorType((node.type.shape[_channel_axis(match)],), c.dtype)
    bias: Ref = match["c"]
    if c != channels:
        bias = builder.node("view", (bias, channels.shape), channels)
    if "b" in match.bound:
        bias = builder.node(match.root.op, (match["b"], bias, 1), channels)
    elif match.root.op == "sub":
        bias = builder.node("neg", (bias,), channels)
    return builder.like(node, match["x"], match["W"], bias)


def _fold(law: str, ops: tuple[str, ...], bias: Var | None, op: str = "add") -> Rule:
    product_ = Pat(ops, Var("x"), Var("W"), bias, ..., name="product")
    pattern = Pat(op, product_, Param("c"), Num("alpha"), commutes=op == "add")
    when = all_of(floating, unit_alpha("alpha"), _per_channel)
    return Rule(law, pattern, _into_product, Exactness.REASSOCIATES, when)


def _text(shape: Shape) -> str:
    return f"({', '.join(str(size) for size in shape)})"


RULES = (
    _fold("linear(x, W, b) + c => linear(x, W, b + c)", ("linear",), Var("b")),
    _fold("linear(x, W) + c => linear(x, W, c)", ("linear",), None),
    _fold("linear(x, W, b) - c => linear(x, W, b - c)", ("linear",), Var("b"), "sub"),
    _fold("linear(x, W) - c => linear(x, W, -c)", ("linear",), None, "sub"),
    _fold("conv(x, W, b) + c => conv(x, W, b + c)", CONVOLUTIONS, Var("b")),
    _fold("conv(x, W) + c => conv(x, W, c)", CONVOLUTIONS, None),
    _fold("conv(x, W, b) - c => conv(x, W, b - c)", CONVOLUTIONS, Var("b"), "sub"),
    _fold("conv(x, W) - c => conv(x, W, -c)", CONVOLUTIONS, None, "sub"),
    Rule(
        "(x + b) + c => x + (b + c)",
        Pat(
            "add",
            Pat("add", Var("x"), Param("b"), Num("alpha_b"), commutes=True),
            Param("c"),
            Num("alpha_c"),
            commutes=True,
        ),
        _sum,
        Exactness.REASSOCIATES,
        when=all_of(floating, unit_alpha("alpha_b", "alpha_c"), _small),
    ),
)
