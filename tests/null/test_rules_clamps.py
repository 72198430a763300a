"""Random chains of clamps against their folded form, bit by bit; no model is captured for this."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelwright.graph import Graph, Node, Origin, Ref, TensorType
from kernelwright.interpret import run
from kernelwright.pattern import aten_call, rewrite
from kernelwright.rules import clamps
from kernelwright.rules.clamps import bounds, compose
from kernelwright.spec import check_graph

FLOAT = TensorType((16,), torch.float32)
POINTS = (-math.inf, -7.0, -1.0, -0.5, -0.0, 0.0, 0.1, 1.0, 6.0, 1e30, math.inf)
X = torch.tensor([*POINTS, math.nan, 1e-40, 0.3, -0.3, 5.0])

numbers = st.sampled_from(POINTS)
steps = st.one_of(
    st.sampled_from([("relu",), ("relu6",)]),
    st.tuples(st.sampled_from(["clamp", "clip", "hardtanh"]), numbers, numbers),
    st.tuples(st.sampled_from(["clamp_min", "clamp_max"]), numbers),
    st.tuples(st.just("clamp"), st.none(), numbers),
    st.tuples(st.just("clamp"), numbers, st.none()),
)


def chain(calls: list[tuple[object, ...]]) -> Graph:
    nodes = [Node("x", "input", (), FLOAT, Origin("input"))]
    for i, (op, *ends) in enumerate(calls):
        args = (Ref(nodes[-1].name), *ends)
        call = aten_call(str(op), args)
        nodes.append(Node(f"c{i}", str(op), args, FLOAT, Origin(str(op)), call, (f"c{i}",)))
    return Graph(tuple(nodes), Ref(nodes[-1].name))


@settings(deadline=None, max_examples=300)
@given(st.lists(steps, min_size=1, max_size=6))
def test_a_chain_of_clamps_is_one_clamp(calls: list[tuple[object, ...]]) -> None:
    graph = chain(calls)
    check_graph(graph, "capture")
    after, log = rewrite(graph, clamps.RULES)
    check_graph(after, "rewrite")
    assert len(after.nodes) == 2
    assert len(log) == len(calls) - 1
    module = torch.nn.Module()
    before, folded = run(graph, module, (X,))[0], run(after, module, (X,))[0]
    assert torch.equal(before.isnan(), folded.isnan())
    assert torch.equal(before.nan_to_num(3.0), folded.nan_to_num(3.0))


@given(steps, steps, steps)
def test_composition_is_associative(a: object, b: object, c: object) -> None:
    first, second, third = (bounds(node) for node in chain([a, b, c]).nodes[1:])  # type: ignore[list-item]
    assert not isinstance(first, str) and not isinstance(second, str) and not isinstance(third, str)
    assert compose(compose(first, second), third) == compose(first, compose(second, third))
