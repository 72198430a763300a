"""Each broken invariant is named, with the pass and the node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import sympy
import torch

from kernelwright.expand.contractions import product_of
from kernelwright.expr import Expr, acc, call, const, load, size
from kernelwright.graph import (
    Call,
    Cat,
    Graph,
    Node,
    Origin,
    Reduction,
    Ref,
    TensorType,
    View,
    broadcast,
)
from kernelwright.pattern import aten_call
from kernelwright.spec import SpecError, check_expr, check_graph

BATCH = sympy.Symbol("batch", integer=True, positive=True)
X = Node("x", "input", (), TensorType((BATCH, 3), torch.float32), Origin("input"))
B = Node("b", "parameter", (), TensorType((3,), torch.float32), Origin("parameter"))


def node(name: str, op: str, args: tuple[Any, ...], payload: Any, *shape: Any) -> Node:
    return Node(name, op, args, TensorType(shape, torch.float32), Origin(op), payload)


def graph(*nodes: Node, outputs: Any = None) -> Graph:
    return Graph((X, B, *nodes), Ref(nodes[-1].name) if outputs is None else outputs)


ADD = call("add", load(0), load(1))
# x @ b
PRODUCT = product_of((BATCH, 3), (3,), Call("torch.ops.aten.mv.default", (Ref("x"), Ref("b"))))
GOOD = graph(
    node("product", "contract", (Ref("x"), Ref("b")), PRODUCT, BATCH),
    node("sum", "map", (Ref("x"), Ref("b")), ADD, BATCH, 3),
    node("row", "reduce", (Ref("sum"),), Reduction("sum", (1,), True), BATCH, 1),
    node("flat", "reduce", (Ref("row"),), Reduction("max", (1,), False), BATCH),
    node("wide", "view", (Ref("row"),), View("expand"), BATCH, 3),
    node("turned", "view", (Ref("wide"),), View("permute", (1, 0)), 3, BATCH),
    node("line", "view", (Ref("turned"),), View("reshape"), 3 * BATCH),
    node("sorted", "opaque", (), Call("torch.ops.aten.sort.default", (Ref("line"),)), 3 * BATCH),
    outputs=(Ref("sorted"), [Ref("flat")]),
)


def test_a_good_graph_passes() -> None:
    check_graph(GOOD, "expand")


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (graph(node("y", "map", (Ref("z"),), load(0), 3)), "%z does not exist"),
        (graph(node("x", "map", (Ref("b"),), load(0), 3)), "the name is taken"),
        (
            graph(
                node("y", "map", (Ref("z"),), load(0), 3),
                node("z", "map", (Ref("b"),), load(0), 3),
            ),
            "%z is used before it is computed",
        ),
        (replace(GOOD, outputs=Ref("gone")), "the result %gone is not computed"),
        (
            replace(GOOD, mutations=(("norm.mean", "sum"),)),
            "norm.mean is written, but is no buffer",
        ),
        (graph(node("y", "mish", (Ref("x"),), None, BATCH, 3)), "mish is not one of map, reduce"),
        (graph(node("y", "map", (Ref("x"),), ADD, BATCH, 3)), r"\$1 is loaded, but there are 1"),
        (graph(node("y", "map", (Ref("x"), 2), ADD, BATCH, 3)), "an operand of a map is no value"),
        (
            graph(node("y", "map", (Ref("x"),), call("div", load(0), size(2 * BATCH)), BATCH, 3)),
            "the size batch is not that of any input",
        ),
        (graph(node("y", "map", (Ref("x"),), None, BATCH, 3)), "a map needs an Expr"),
        (
            graph(node("y", "map", (Ref("x"),), acc(0), BATCH, 3)),
            "neither reductions nor coordinates",
        ),
        (graph(node("y", "map", (Ref("x"), Ref("b")), ADD, BATCH, 4)), "the operands broadcast to"),
        (
            graph(node("y", "reduce", (Ref("x"),), Reduction("sum", (2,), True), BATCH, 3)),
            r"axes \(2,\) are not distinct axes of a tensor of rank 2",
        ),
        (
            graph(node("y", "reduce", (Ref("x"),), Reduction("sum", (1, 1), True), BATCH, 1)),
            "are not distinct axes",
        ),
        (
            graph(node("y", "reduce", (Ref("x"),), Reduction("sum", (1,), True), BATCH)),
            "the result has shape",
        ),
        (
            graph(node("y", "reduce", (Ref("x"),), Reduction("average", (1,), True), BATCH, 1)),
            "average is not one of sum",
        ),
        (graph(node("y", "view", (Ref("x"),), View("reshape"), BATCH, 4)), "reshape of"),
        (
            graph(node("y", "view", (Ref("x"),), View("permute", (0, 0)), BATCH, 3)),
            "no permutation",
        ),
        (graph(node("y", "view", (Ref("b"),), View("expand"), 3, BATCH)), "expand of"),
        (graph(node("y", "view", (Ref("b"),), View("twist"), 3)), "twist is no kind of view"),
        (
            graph(node("y", "view", (Ref("x"),), View("slice", (1,), 2), BATCH, 2)),
            "slice of axis 1 from 2 of",
        ),
        (graph(node("y", "view", (Ref("x"),), View("slice", (1,)), 2, 3)), "slice of axis 1"),
        (graph(node("y", "cat", (Ref("x"), Ref("b")), Cat(1), BATCH, 6)), "does not fit into"),
        (
            graph(node("y", "cat", (Ref("x"), Ref("x")), Cat(1), BATCH, 5)),
            "the parts have 6 places",
        ),
        (graph(node("y", "cat", (), Cat(0), 3)), "a cat needs parts"),
        (graph(node("y", "opaque", (Ref("b"),), None, 3)), "an opaque node needs the Call"),
        (graph(node("y", "contract", (Ref("x"), Ref("b")), ADD, BATCH)), "needs its Contraction"),
        (graph(node("y", "contract", (Ref("x"),), PRODUCT, BATCH)), "two operands"),
        (graph(node("y", "contract", (Ref("x"), Ref("b")), PRODUCT, BATCH, 1)), "1 places for a"),
        (graph(node("y", "contract", (Ref("x"), Ref("b")), PRODUCT, 3)), "walked in batch steps"),
    ],
)
def test_a_broken_graph_is_named(broken: Graph, why: str) -> None:
    with pytest.raises(SpecError, match=why) as caught:
        check_graph(broken, "expand")
    assert "after expand" in str(caught.value)


def test_captured_nodes_and_their_calls_say_the_same() -> None:
    args = (Ref("x"), Ref("b"), 1)
    good = graph(node("y", "add", args, aten_call("add", args), BATCH, 3))
    check_graph(good, "capture")
    stale = graph(node("y", "add", (Ref("x"), Ref("x"), 1), aten_call("add", args), BATCH, 3))
    with pytest.raises(SpecError, match="do not agree"):
        check_graph(stale, "rewrite")
    with pytest.raises(SpecError, match="an ATen operator needs its Call"):
        check_graph(graph(node("y", "add", args, None, BATCH, 3)), "capture")


def raw(op: str, args: tuple[Expr, ...], value: Any) -> Expr:
    """An Expr that no constructor would make."""
    made = object.__new__(Expr)
    made.op, made.args, made.value = op, args, value
    return made


@pytest.mark.parametrize(
    ("expr", "why"),
    [
        (raw("frobnicate", (const(1),), None), "frobnicate is no row of the op table"),
        (raw("add", (const(1),), None), "add takes 2 arguments, not 1"),
        (raw("neg", (raw("const", (), "one"),), None), "const needs one float"),
        (raw("load", (), None), "load needs a key"),
        (raw("acc", (), -1), "acc needs the index of a reduction"),
        (raw("size", (), 3), "size needs a dimension"),
        (raw("neg", (load(0),), 3), "neg is no leaf, so it has no value"),
    ],
)
def test_a_broken_expression_is_named(expr: Expr, why: str) -> None:
    with pytest.raises(SpecError, match=why):
        check_expr(expr)


def test_a_good_expression_passes() -> None:
    check_expr(call("clamp", call("add", load("row"), acc(0)), size(2 * BATCH), float("inf")))


def test_broadcasting_knows_symbolic_sizes() -> None:
    assert broadcast((BATCH, 1), (1, 8, 1, 1)) == (1, 8, BATCH, 1)
    assert broadcast((BATCH, 3), (2, 3)) is None
    assert broadcast((), (4,)) == (4,)
