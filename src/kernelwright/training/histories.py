"""Whether differentiating a captured graph gives what autograd gives of the forward itself.

A trace does not say where the forward stops gradients, or brings a rule of its own: that is in the
history that autograd records. The forward was called on fake tensors (probe.py), and here the graph
is; if both leave the same history, the same is differentiated.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from kernelwright.errors import UnsupportedError
from kernelwright.graph import SOURCES, Graph, Ref, Scalar, is_differentiable
from kernelwright.histories import histories
from kernelwright.interpret import carry_out
from kernelwright.strides import as_seen


def recorded(graph: Graph) -> tuple[str, ...]:
    """For each leaf of the outputs, what autograd records of the captured graph."""
    seen = as_seen(graph)
    reached: set[str] = set().union(*(graph.contract.reaches or ()))
    values: dict[str, Any] = {}

    def look(value: Any) -> Any:
        if isinstance(value, Ref):
            return values[value.name]
        if isinstance(value, tuple | list):
            return [look(v) for v in value]
        if isinstance(value, Scalar):
            raise UnsupportedError("a number of the forward is known only at a call")
        return value

    with FakeTensorMode(allow_non_fake_inputs=True), torch.enable_grad():
        for node in seen:
            if node.op in SOURCES:
                shape, device = node.type.shape, graph.contract.device
                made = torch.empty(shape, dtype=node.type.dtype, device=device)
                asks = node.name in reached and is_differentiable(node.type.dtype)
                values[node.name] = made.requires_grad_(asks)
            else:
                values[node.name] = carry_out(node, look)
        outputs = pytree.tree_leaves(graph.outputs)
        found = [values[leaf.name] if isinstance(leaf, Ref) else leaf for leaf in outputs]
        return histories(found)
