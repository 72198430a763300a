"""Compiling takes steps in proportion to a small power of the operators, whoever reads whom.

Work is counted in calls of kernelwright's own functions: time would depend on the machine. The
graphs are written by hand, since torch.export's own time is not ours.
"""

from __future__ import annotations

import cProfile
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kernelwright.emit.sources import source
from kernelwright.expand import expand
from kernelwright.graph import Graph, Node, Origin, Ref, TensorType
from kernelwright.ledger import ledger, render
from kernelwright.lower import conv_time, lower
from kernelwright.pattern import aten_call, refusals, rewrite
from kernelwright.plan import WHERE_IT_PAYS, limits_of, plan, seat, ways
from kernelwright.rules import ALL_RULES
from kernelwright.targets import target_for

BATCH, WIDTH = 64, 128


class Model:
    """A captured graph, operator by operator."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.x = self.source("x", "input", BATCH, WIDTH)

    def source(self, name: str, op: str, *shape: int) -> Ref:
        type = TensorType(shape, torch.float32)
        self.nodes.append(Node(name, op, (), type, Origin(op)))
        return Ref(name)

    def parameter(self, *shape: int) -> Ref:
        return self.source(f"p{len(self.nodes)}", "parameter", *shape)

    def __call__(self, op: str, *args: Any, shape: tuple[int, ...] = (BATCH, WIDTH)) -> Ref:
        name = f"{op}_{len(self.nodes)}"
        type, origin = TensorType(shape, torch.float32), Origin(op, "model.py", len(self.nodes))
        self.nodes.append(Node(name, op, args, type, origin, aten_call(op, args), (name,)))
        return Ref(name)

    def linear(self, x: Ref, columns: int, depth: int) -> Ref:
        parts = (self.parameter(columns, depth), self.parameter(columns))
        return self("linear", x, *parts, shape=(BATCH, columns))

    def returning(self, *results: Ref) -> Graph:
        targets = {n.name: n.name for n in self.nodes if n.op == "parameter"}
        return Graph(tuple(self.nodes), results, targets=targets)


def gated(operators: int) -> Graph:
    """x * sigmoid(x), again and again: two ways to each value, and to each of those two."""
    model = Model()
    x = model.x
    for _ in range(operators // 2):
        x = model("mul", x, model("sigmoid", x))
    return model.returning(x)


def residual(operators: int) -> Graph:
    """A residual stream of blocks, each with a norm and two products."""
    model = Model()
    x = model.x
    for _ in range(operators // 5):
        parts = (model.parameter(WIDTH), model.parameter(WIDTH))
        inside = model("layer_norm", x, (WIDTH,), *parts, 1e-5, True)
        inside = model.linear(inside, 4 * WIDTH, WIDTH)
        inside = model("gelu", inside, "none", shape=(BATCH, 4 * WIDTH))
        x = model("add", x, model.linear(inside, WIDTH, 4 * WIDTH), 1)
    return model.returning(x)


def dense(operators: int) -> Graph:
    """Each layer reads all before it, joined."""
    model = Model()
    parts = [model.x]
    for _ in range(operators // 3):
        joined = model("cat", tuple(parts), 1, shape=(BATCH, WIDTH * len(parts)))
        active = model("relu", joined, shape=(BATCH, WIDTH * len(parts)))
        parts.append(model.linear(active, WIDTH, WIDTH * len(parts)))
    return model.returning(parts[-1])


def rolled(operators: int) -> Graph:
    """x + roll(x): a choice between two places at each step, so 2^n of them in the end."""
    model = Model()
    x = model.x
    for _ in range(operators // 4):
        last = model("slice.Tensor", x, 1, WIDTH - 1, WIDTH, 1, shape=(BATCH, 1))
        rest = model("slice.Tensor", x, 1, 0, WIDTH - 1, 1, shape=(BATCH, WIDTH - 1))
        x = model("add", x, model("cat", (last, rest), 1), 1)
    return model.returning(x)


def woven(operators: int) -> Graph:
    """Pointwise operators with several readers each, and reductions of some."""
    model = Model()
    values = [model.x]
    for i in range(operators // 2):
        changed = model(("relu", "sigmoid", "tanh", "sin")[i % 4], values[-1])
        values.append(model("add", changed, values[i * 7 % len(values)], 1))
    sums = [
        model("sum.dim_IntList", v, (axis,), False, None, shape=(size,))
        for v in values[:: len(values) // 4]
        for axis, size in ((1, BATCH), (0, WIDTH))
    ]
    return model.returning(values[-1], *sums)


MODELS: dict[str, Callable[[int], Graph]] = {
    "gated": gated,
    "residual": residual,
    "dense": dense,
    "rolled": rolled,
    "woven": woven,
}


def work(graph: Graph, target: str) -> int:
    """Calls of our own functions from rewriting to the text of the kernels."""
    with cProfile.Profile(builtins=False) as profile:
        compiled(graph, target)
    pairs = [(getattr(e.code, "co_filename", ""), e.callcount) for e in profile.getstats()]
    return sum(calls for file, calls in pairs if "kernelwright" in file)


def compiled(graph: Graph, target: str) -> str:
    machine = target_for(target)
    rewritten, rewrites = rewrite(graph, ALL_RULES)
    primitives = expand(rewritten)
    products = ways(primitives, machine, "highest", BATCH, WHERE_IT_PAYS)
    planned = plan(primitives, limits_of(machine), products.generated, BATCH)
    if machine.lanes is not None:
        planned = seat(planned, products, conv_time)
    lowered = lower(planned, machine)
    text = source(primitives, lowered, target)
    reasons = (str(planned), render(ledger(graph, rewrites, planned, lowered.in_place)))
    return "\n".join([text.programs, *reasons, *map(str, refusals(rewritten, ALL_RULES))])


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("name", MODELS)
def test_twice_the_operators_take_a_few_times_the_work(name: str, target: str) -> None:
    """A dense graph has four times the edges then."""
    half, whole = (work(MODELS[name](n), target) for n in (100, 200))
    assert whole < 7 * half
    assert whole < 5_000_000


@pytest.mark.parametrize("name", ["gated", "woven"])
def test_the_texts_grow_with_the_operators(name: str) -> None:
    half, whole = (len(compiled(MODELS[name](n), "cpu")) for n in (100, 200))
    assert whole < 3 * half


def test_a_thousand_operators_in_a_row() -> None:
    """No walk recurses, and no expression is too deep for a C++ compiler."""
    text = compiled(gated(1000), "cpu")
    assert text.count("sigmoid") >= 500
    depth = deepest = 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        deepest = max(deepest, depth)
    assert deepest < 64
