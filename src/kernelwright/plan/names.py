"""Names of kernels: the user's operators in order, `bias_hardtanh_mish_group_norm`."""

from __future__ import annotations

from kernelwright.expr import Expr
from kernelwright.graph import Node, fresh_name

SHORT = {
    "linear": "bias",
    "addmm": "bias",
    "__and__": "bitwise_and",
    "__or__": "bitwise_or",
    "__xor__": "bitwise_xor",
    "adaptive_avg_pool2d": "global_average",
}
MOST = 5


def region_name(nodes: list[Node], taken: set[str]) -> str:
    """A fresh C++ identifier; long chains keep their first and last operators."""
    parts: list[str] = []
    for node in nodes:
        op = node.origin.op
        added = isinstance(node.payload, Expr) and node.payload.op == "add"
        word = "bias" if op.startswith("conv") and added else SHORT.get(op, op)
        word = op if node.op == "contract" else word
        if node.op != "view" and word != "getitem" and (not parts or parts[-1] != word):
            parts.append(word)
    if len(parts) > MOST:
        parts = [*parts[: MOST - 1], parts[-1]]
    return fresh_name("_".join(parts).strip("_") or "copy", taken)
