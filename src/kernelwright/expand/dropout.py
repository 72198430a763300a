"""Live dropout as a mask and a product, where the target has a kernel that draws eager's numbers.

In: native_dropout in training. Out: x * keep * scale, with the mask as a value of its own. Which
element gets which number depends on how eager's operand lies in memory: row by row, from an aligned
address on. Where that is not so, as of an input, a slice or what keeps the order of a transpose,
the call stays with ATen.
"""

from __future__ import annotations

import torch

from kernelwright import dropout
from kernelwright.expand.builder import Builder, Lowering
from kernelwright.expr import call, load
from kernelwright.graph import SOURCES, Call, Graph, Node, TensorType
from kernelwright.memory import views
from kernelwright.strides import given_rows

OP = "native_dropout"
# Views that leave memory as it is, from the first element to the last.
WHOLE = {
    *("view", "_unsafe_view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze"),
    *("contiguous", "alias", "detach", "squeeze.dim", "squeeze.dims", "dropout"),
}


def _lower(builder: Builder, node: Node) -> str | None:
    value, rate, training = node.args
    live = training is not False and isinstance(rate, float) and 0.0 < rate < 1.0
    if not live or not builder.floating(value.name) or not _is_fresh(builder.graph, value.name):
        return None
    if not given_rows(builder.graph, node):
        return None
    type = node.type
    asked = Call(dropout.TARGET, (type.shape, type.dtype, rate))
    keep = builder.draw(asked, TensorType(type.shape, torch.bool), label="keep")
    _, scale = dropout.keep_and_scale(rate)
    expr = call("mul", call("mul", load(0), load(1)), scale)
    return builder.several(r0=builder.map(expr, [value.name, keep], type, "kept"), r1=keep)


def _is_fresh(graph: Graph, name: str) -> bool:
    """Whether eager has the value in memory of its own, of which it is all."""
    node = graph[name]
    while node.op not in SOURCES:
        made = graph[node.inputs[0]] if node.op == "getitem" else node
        if not isinstance(made.payload, Call) or not (views(made.payload) or made.op == "dropout"):
            return True
        if made.op not in WHOLE:
            return False
        node = graph[made.inputs[0]]
    return False


LOWERINGS: dict[str, Lowering] = {OP: _lower}
