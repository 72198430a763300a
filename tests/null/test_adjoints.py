"""Gradients in primitives: of every family, what stays with ATen, and the values in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from adjoints import FAMILIES, Calls
from torch.utils import _pytree as pytree

from kernelwright import spec
from kernelwright.capture import capture
from kernelwright.expand import expand
from kernelwright.graph import Call, Graph
from kernelwright.interpret import run
from kernelwright.problem import problem_from_module

# What ATen is asked for: the gradients of weights, and integers.
KEPT = {
    "convolutions": {"torch.ops.aten.convolution_backward.default", "getitem"},
    "places": {"torch.ops.aten._to_copy.default"},
}


def expanded(module: Calls) -> Graph:
    """In primitives, for sizes that are the example's."""
    problem = problem_from_module(module, module.inputs)
    held = frozenset(range(len(problem.tensors)))
    graph = expand(capture(replace(problem, held=held)))
    spec.check_graph(graph, "expand")
    return graph


def widened(inputs: Any) -> Any:
    return pytree.tree_map(lambda x: x.double() if x.is_floating_point() else x, inputs)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_have_primitive_forms(family: str) -> None:
    module = Calls(FAMILIES[family])
    graph = expanded(module)
    calls = {n.payload.target for n in graph if n.op == "opaque" and isinstance(n.payload, Call)}
    assert calls == KEPT.get(family, set())
    wide = widened(module.inputs)
    made, exact = run(graph, module, wide)[0], module.exact(*wide)
    for case, ours, theirs in zip(module.cases, made, exact, strict=True):
        pairs = zip(pytree.tree_leaves(ours), pytree.tree_leaves(theirs), strict=True)
        for number, (a, b) in enumerate(pairs):
            assert a.dtype == b.dtype
            close = torch.allclose(a, b, rtol=1e-7, atol=1e-9, equal_nan=True)
            assert close, f"result {number} of {case.name}"
