"""Contractions, parted from their bias: the bias is a map, which a fused kernel adds for free."""

from __future__ import annotations

from typing import Any

from kernelwright.expand.builder import Builder, Lowering
from kernelwright.graph import Call, Node, Ref

BIAS_SLOT = 2


def _with_bias(spatial: int) -> Lowering:
    """linear and the convolutions: (x, W, bias, ...) becomes a contraction and a broadcast add.

    `spatial` counts the axes behind the channels, over which the bias is the same.
    """

    def lower(builder: Builder, node: Node) -> str | None:
        args, payload = list(node.args), node.payload
        assert isinstance(payload, Call)
        bias = args[BIAS_SLOT]
        operands = [args[0].name, args[1].name]
        if not builder.floating(*operands):
            return None
        plain = Call(payload.target, _without(payload.args, BIAS_SLOT), payload.kwargs)
        if bias is None:
            return builder.contract(plain, operands)
        product = builder.contract(plain, operands, label="product")
        shape = (*builder.shape(bias.name), *(1 for _ in range(spatial)))
        viewed = builder.view("reshape", bias.name, shape, label="bias")
        return builder.apply("add", product, viewed, label=node.name)

    return lower


def _without(args: tuple[Any, ...], slot: int) -> tuple[Any, ...]:
    return tuple(None if i == slot else a for i, a in enumerate(args))


def _product(builder: Builder, node: Node) -> str | None:
    operands = [a.name for a in node.args if isinstance(a, Ref)]
    assert isinstance(node.payload, Call)
    return builder.contract(node.payload, operands) if builder.floating(*operands) else None


def _addmm(builder: Builder, node: Node) -> str | None:
    bias, left, right, beta, alpha = node.args
    if not builder.floating(left.name, right.name, bias.name) or beta != 1 or alpha != 1:
        return None
    call = Call("torch.ops.aten.mm.default", (left, right))
    product = builder.contract(call, [left.name, right.name], label="product")
    return builder.apply("add", product, bias.name, label=node.name)


LOWERINGS: dict[str, Lowering] = {
    "linear": _with_bias(0),
    **{f"conv{n}d": _with_bias(n) for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": _with_bias(n) for n in (1, 2, 3)},
    **{f"conv{n}d.padding": _with_bias(n) for n in (1, 2, 3)},
    "mm": _product,
    "bmm": _product,
    "matmul": _product,
    "addmm": _addmm,
}
