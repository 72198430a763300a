"""torch's own attention as two products with a softmax between, where one kernel makes all of it.

In: scaled_dot_product_attention. Out: what people write by hand, which plan/attention.py finds
again. Where nobody would put it together, the call stays whole: the library has a kernel for it.

On a CPU it follows the kernel that torch has there for heads of one width: a mask of truths is
added as zeros and -inf, so a score that is no number stays none behind it, and a query with nothing
but scores of -inf has no weights, whatever they come from.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from kernelwright.expand.builder import Builder, Lowering
from kernelwright.expand.contractions import product_of
from kernelwright.expand.reductions import shifted_exponentials
from kernelwright.expr import call, index, load
from kernelwright.graph import Call, Node, Ref, Shape, TensorType, broadcast

OP = "scaled_dot_product_attention"
MATMUL = "torch.ops.aten.matmul.default"
INF = float("inf")


Attends = Callable[[TensorType, TensorType, TensorType], bool]


def lowering(attends: Attends, on_cores: bool) -> dict[str, Lowering]:
    """`attends` says of query, key and value whether it is worth it."""

    def lower(builder: Builder, node: Node) -> str | None:
        query, key, value, mask, dropout, causal, scale, grouped = node.args
        types = [builder.type(x.name) for x in (query, key, value)]
        heads = {t.shape[:-2] for t in types}
        if dropout != 0.0 or grouped or len(heads) != 1 or not attends(*types):
            return None
        if on_cores and not _is_torchs_own(*types):
            return None
        if mask is not None and not _fits(builder, mask.name, types[0].shape, types[1].shape):
            return None
        scores = _scores(builder, query.name, key.name, scale)
        if mask is not None:
            scores = _masked(builder, scores, mask.name, added=on_cores)
        if causal:
            scores = _causal(builder, scores)
        weights = _weights(builder, scores, masked=on_cores or mask is not None)
        return _product(builder, weights, value.name)

    return {OP: lower}


def _product(builder: Builder, left: str, right: str, label: str | None = None) -> str:
    shapes = builder.shape(left), builder.shape(right)
    made = product_of(*shapes, Call(MATMUL, (Ref(left), Ref(right))))
    shape = (*shapes[0][:-1], shapes[1][-1])
    return builder.contract(made, [left, right], label, shape)


def _scores(builder: Builder, query: str, key: str, scale: float | None) -> str:
    shape = builder.shape(key)
    last = len(shape) - 1
    order = (*range(last - 1), last, last - 1)
    turned = tuple(shape[i] for i in order)
    key = builder.view("permute", key, turned, order, label="turned")
    product = _product(builder, query, key, "product")
    by = 1.0 / math.sqrt(int(str(shape[-1]))) if scale is None else scale
    return builder.apply("mul", product, by, label="scores")


def _is_torchs_own(query: TensorType, key: TensorType, value: TensorType) -> bool:
    """Whether torch has one kernel for it on a CPU; by steps it overflows elsewhere."""
    return len(query.shape) == 4 and key.shape == value.shape


def _fits(builder: Builder, mask: str, query: Shape, key: Shape) -> bool:
    known = builder.type(mask).dtype is torch.bool or builder.floating(mask)
    scores = (*query[:-1], key[-2])
    return known and broadcast(builder.shape(mask), scores) == scores


def _masked(builder: Builder, scores: str, mask: str, added: bool) -> str:
    """A mask of truths says where to look, any other is added."""
    if builder.type(mask).dtype is not torch.bool:
        return builder.apply("add", scores, mask, label="masked")
    seen = call("where", load(1), load(0), -INF)
    if added:
        seen = call("add", load(0), call("where", load(1), 0.0, -INF))
    return builder.map(seen, [scores, mask], builder.type(scores), "masked")


def _causal(builder: Builder, scores: str) -> str:
    """No query looks at a key behind it."""
    rank = len(builder.shape(scores))
    seen = call("where", call("le", index(rank - 1), index(rank - 2)), load(0), -INF)
    return builder.map(seen, [scores], builder.type(scores), "seen")


def _weights(builder: Builder, scores: str, masked: bool) -> str:
    """A softmax; where a mask leaves a query nothing to look at, its weights are zero."""
    axis = len(builder.shape(scores)) - 1
    _, _, powers, total = shifted_exponentials(builder, scores, (axis,), safe=masked)
    by = call("reciprocal", load(0))
    if masked:
        by = call("where", call("eq", load(0), 0.0), 0.0, by)
    scale = builder.map(by, [total], builder.type(total), "reciprocal_sum")
    return builder.apply("mul", powers, scale, label="weights")
