"""Shape operators: reshapes, permutations and expansions are views; the rest stays with ATen."""

from __future__ import annotations

from kernelwright.expand.builder import Builder, Lowering
from kernelwright.graph import Node

RESHAPES = (
    "view", "reshape", "_unsafe_view", "flatten.using_ints", "unflatten", "squeeze", "squeeze.dim",
    "squeeze.dims", "unsqueeze", "detach", "alias", "view_as", "reshape_as",
)  # fmt: skip


def _reshape(builder: Builder, node: Node) -> str | None:
    return builder.view("reshape", node.args[0].name, node.type.shape)


def _permute(builder: Builder, node: Node) -> str | None:
    value = node.args[0].name
    rank = len(builder.shape(value))
    dims = tuple(d % rank for d in node.args[1])
    return builder.view("permute", value, node.type.shape, dims)


def _transpose(builder: Builder, node: Node) -> str | None:
    value = node.args[0].name
    dims = list(range(len(builder.shape(value))))
    first, second = (node.args[1], node.args[2]) if len(node.args) > 2 else (-2, -1)
    if len(dims) >= 2:
        dims[first], dims[second] = dims[second], dims[first]
    return builder.view("permute", value, node.type.shape, dims)


def _expand(builder: Builder, node: Node) -> str | None:
    return builder.view("expand", node.args[0].name, node.type.shape)


LOWERINGS: dict[str, Lowering] = {
    **{name: _reshape for name in RESHAPES},
    "permute": _permute,
    "transpose": _transpose,
    "t": _transpose,
    "expand": _expand,
    "expand_as": _expand,
}
