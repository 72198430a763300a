"""The mean of an affine function of x is that function of the mean of x, which x's statistics have.

In: a graph of primitives and the backend's Limits. Out: the graph, in which a mean or sum over a
normalised value needs no pass of its own, and the laws that fired.

A batch norm scales and shifts each channel by what it has seen in the whole batch. A mean over the
space of that waits for the statistics, so it would read the tensor once more. But

    mean(a * x + b) = a * mean(x) + b    for a and b that are the same all along the mean's axes

and if the statistics are made from those over these axes, sample by sample, mean(x) is on the way:

    sum of x        = sum over samples of  t,  the sum of x in a sample, with the mean m = t / n
    sum of squares  = sum over samples of  q + n * (m - mean)^2,  q = sum of (x - m)^2 in a sample

so that no square is taken further from its mean than before. The same holds for a group norm, with
channels in the place of samples.

m is a rounded number, and if x is far from zero that shows in m - mean and in a * m + b. So it has
the sum of x - m beside it, what the rounding took, which is added where something large has been
taken off: after the first map, in a norm. NaN and infinities are where they were: what is not
finite reaches the statistics, and with them every result.

Left alone: rows that stay in registers or in the cache, where a second look costs nothing; be it
those of the statistics, or those of the mean, if somebody needs what they are the mean of.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, replace

import torch

from kernelwright.expr import Expr, call, const, leaves, load, size
from kernelwright.graph import (
    Dim,
    Graph,
    Node,
    Payload,
    Reduction,
    Ref,
    Shape,
    TensorType,
    View,
    fresh_name,
    hint,
    product,
)
from kernelwright.pattern import Exactness, Rewrite
from kernelwright.plan.limits import Limits
from kernelwright.plan.model import CALLS
from kernelwright.walk import reach

LAW = "mean(a * x + b) => a * mean(x) + b, from the statistics of x"
Axes = tuple[int, ...]
CENTRED, SQUARE = call("sub", load(0), load(1)), call("square", load(0))
FOLLOWED = ("map", "view", "reduce")
# Sums over fewer elements are not so few beside x: to write and read them is a pass as well.
FEWEST = 16


def from_statistics(
    graph: Graph, limits: Limits, in_tiles: Container[str] = ()
) -> tuple[Graph, tuple[Rewrite, ...]]:
    """Every mean or sum of a normalised value, from the statistics that it waits for.

    `in_tiles` are convolutions that kernels of ours make, tile by tile.
    """
    log: list[Rewrite] = []
    for name in [n.name for n in graph if _sums(n)]:
        stays = _Stays(graph, limits, in_tiles)
        found = _found(graph, graph[name], stays) if name in graph.by_name else None
        if found is not None:
            log.append(Rewrite(LAW, Exactness.REASSOCIATES, graph[name].origin, ()))
            graph = _Rebuilding(graph, found).run()
    return graph, tuple(log)


# ---- where it holds --------------------------------------------------------------------------


@dataclass(frozen=True)
class _Stays:
    """Which rows are at hand until their statistics are known; a tile has parts of them alone."""

    graph: Graph
    limits: Limits
    in_tiles: Container[str]

    def row(self, x: Node, over: Axes, axes: Axes) -> bool:
        row, part = _count(x, over), _count(x, axes)
        if not isinstance(row, int) or not isinstance(part, int):
            return False
        return self.limits.two_levels(row, part) and not self.parted(x.name)

    def with_readers(self, node: Node, path: list[Node], known: set[str]) -> bool:
        """Whether others need what is summed, and find it where the sum has left it."""
        row = _count(path[0], _axes(node))
        if not isinstance(row, int) or not self.limits.two_levels(row, row):
            return False
        users = {user for step in path for user in self.graph.users[step.name]} - known
        returned = any(step.name in self.graph.results for step in path)
        return returned or not users <= self.much_later(node.name)

    def much_later(self, name: str) -> set[str]:
        """What waits for a product or a call that waits for it: no kernel goes on so long."""
        calls = [n for n in reach([name], self.graph.users.__getitem__) if self.is_call(n)]
        return {*reach(calls, self.graph.users.__getitem__)}

    def is_call(self, name: str) -> bool:
        return self.graph[name].op in CALLS

    def parted(self, name: str) -> bool:
        below = reach([name], lambda n: _inputs(self.graph[n], "map", "view"))
        return any(n in self.in_tiles for n in below)


@dataclass(frozen=True)
class _Statistics:
    """The sum of x over some axes, and sums over them of x - mean and of its squares."""

    total: str
    around: tuple[str, ...]


@dataclass(frozen=True)
class _Found:
    """A sum over an affine function of x.

    `path` are the maps and reshapes from its operand down to x, each with its axes along which only
    x differs, and `axes` are those of x. `nested` are the statistics over more axes, which will be
    made from those over these.
    """

    sum: Node
    path: tuple[tuple[Node, Axes], ...]
    x: str
    axes: Axes
    nested: tuple[_Statistics, ...]


def _sums(node: Node) -> Reduction | None:
    reduction = node.payload
    if not isinstance(reduction, Reduction) or reduction.kind != "sum":
        return None
    return reduction if node.type.dtype == torch.float32 else None


def _found(graph: Graph, node: Node, stays: _Stays) -> _Found | None:
    reduction = _sums(node)
    assert reduction is not None
    axes = {axis: axis for axis in reduction.axes}  # of the sum's operand, and where they are here
    path: list[tuple[Node, dict[int, int]]] = []
    value = graph[node.inputs[0]]
    while (below := _below(graph, value, axes)) is not None and below[1]:
        path.append((value, axes))
        value, axes = graph[below[0]], below[1]
        own = tuple(sorted(axes.values()))
        nested = _waited_for(graph, node, [step for step, _ in path], value, own, stays)
        if nested is not None:
            kept = ((step, tuple(at[a] for a in axes)) for step, at in path)
            return _Found(node, tuple(kept), value.name, own, nested)
    return None


def _below(graph: Graph, node: Node, axes: dict[int, int]) -> tuple[str, dict[int, int]] | None:
    """The operand that an affine function is taken of, and the axes along which it alone varies."""
    if isinstance(node.payload, View) and node.payload.kind == "reshape":
        (name,) = node.inputs
        before = graph[name].type.shape
        kept = {axis: _axis(node.type.shape, at, before) for axis, at in axes.items()}
        return name, {axis: at for axis, at in kept.items() if at is not None}
    if not isinstance(node.payload, Expr) or leaves(node.payload, "index") or not node.inputs:
        return None
    along = [_varies(graph[name], node) & {*axes.values()} for name in node.inputs]
    moving = max(range(len(along)), key=lambda i: len(along[i]))
    others = set[int]().union(*along[:moving], *along[moving + 1 :])
    operand = graph[node.inputs[moving]]
    if _slope(node.payload, moving) is None or operand.type.dtype != node.type.dtype:
        return None
    shift = len(node.type.shape) - len(operand.type.shape)
    left = {a: at - shift for a, at in axes.items() if at in along[moving] and at not in others}
    return operand.name, left


def _axis(shape: Shape, axis: int, other: Shape) -> int | None:
    """The axis of a reshaped value that is the same one."""
    behind = product(shape[axis + 1 :])
    for i, extent in enumerate(other):
        if extent == shape[axis] and product(other[i + 1 :]) == behind:
            return i
    return None


def _varies(operand: Node, result: Node) -> set[int]:
    """The axes of a map's result along which an operand differs."""
    first = len(result.type.shape) - len(operand.type.shape)
    return {first + i for i, extent in enumerate(operand.type.shape) if extent != 1}


def _slope(expr: Expr, slot: int) -> Expr | None:
    """The a of a * load(slot) + b, with a and b of other operands; None for other expressions."""
    if all(leaf.value != slot for leaf in leaves(expr, "load")):
        return const(0)
    if expr.op == "load":
        return const(1)
    if expr.op not in ("add", "sub", "neg", "mul", "div"):
        return None
    slopes = [_slope(arg, slot) for arg in expr.args]
    if any(slope is None for slope in slopes):
        return None
    first, second = slopes[0], slopes[-1]
    assert first is not None and second is not None
    if expr.op in ("add", "sub", "neg"):
        return call(expr.op, *(slope for slope in slopes if slope is not None))
    if second is const(0):
        return call(expr.op, first, expr.args[1])
    return call("mul", expr.args[0], second) if expr.op == "mul" and first is const(0) else None


def _times(slope: Expr, value: Expr) -> Expr:
    return value if slope is const(1) else call("mul", slope, value)


def _waited_for(
    graph: Graph, node: Node, path: list[Node], x: Node, axes: Axes, stays: _Stays
) -> tuple[_Statistics, ...] | None:
    """The statistics of x that the path waits for and that these axes are part of.

    None where it waits for none, or for something else that needs all of x.
    """
    if not any(_sums(graph[user]) for user in graph.users[x.name]):
        return None
    on_path = {x.name, *(step.name for step in path)}
    beside = [name for step in path for name in step.inputs if name not in on_path]
    waited = reach(beside, lambda n: () if n in on_path else _inputs(graph[n], *FOLLOWED))
    whole = [
        name
        for name in waited
        if graph[name].op == "reduce" and graph[graph[name].inputs[0]].type.numel == x.type.numel
    ]
    found = [s for name in whole if (s := _statistics(graph, graph[name], x)) is not None]
    if not found or not {*whole} <= {n for s in found for n in (s.total, *s.around)}:
        return None
    each = _count(x, axes)
    over = [_axes(graph[s.total]) for s in found]
    if hint(each) < FEWEST or any(not {*axes} <= {*of} or stays.row(x, of, axes) for of in over):
        return None
    if stays.with_readers(node, path, {node.name, *on_path, *waited}):
        return None
    return tuple(s for s in found if _axes(graph[s.total]) != axes)


def _inputs(node: Node, *ops: str) -> tuple[str, ...]:
    return node.inputs if node.op in ops else ()


def _statistics(graph: Graph, node: Node, x: Node) -> _Statistics | None:
    """The statistics of x of which this is the sum."""
    if not _sums(node) or node.inputs != (x.name,):
        return None
    return _Statistics(node.name, tuple(_around(graph, node, x)))


def _around(graph: Graph, total: Node, x: Node) -> Iterator[str]:
    """Sums over the same axes of x - total / n, and of the squares of that."""
    divided = call("div", load(0), size(_count(x, _axes(total))))
    for mean in _users(graph, total.name, divided):
        for centred in _users(graph, mean, CENTRED):
            if graph[centred].inputs != (x.name, mean):
                continue
            for value in (centred, *_users(graph, centred, SQUARE)):
                sums = (graph[user] for user in graph.users[value])
                yield from (n.name for n in sums if _sums(n) and _axes(n) == _axes(total))


def _users(graph: Graph, name: str, expr: Expr) -> list[str]:
    return [user for user in graph.users[name] if graph[user].payload is expr]


def _axes(node: Node) -> Axes:
    reduction = _sums(node)
    assert reduction is not None
    return tuple(sorted(reduction.axes))


def _count(x: Node, axes: Axes) -> Dim:
    return product([x.type.shape[axis] for axis in axes])


# ---- what becomes of it ----------------------------------------------------------------------


class _Rebuilding:
    """The graph with the sum made of the sums of x, and with the statistics made of these too."""

    def __init__(self, graph: Graph, found: _Found) -> None:
        self.graph, self.found = graph, found
        self.nodes = {n.name: n for n in graph}
        self.taken = set(graph.by_name)
        self.x = graph[found.x]
        self.each = _count(self.x, found.axes)
        self.owner = graph[found.nested[0].total] if found.nested else found.sum

    def run(self) -> Graph:
        total = self.total()
        mean = self.map("mean", self.shared(0), [total], self.owner)
        own = self.map("own", CENTRED, [self.x.name, mean], self.owner)
        left = self.over("left", own)
        self.sum(mean, left)
        for statistics in self.found.nested:
            self.nodes[statistics.total] = self.of(self.graph[statistics.total], total)
            for name in statistics.around:
                self.nest(self.graph[name], own, mean, left)
        return self.graph.with_nodes(list(self.nodes.values()))

    def add(
        self, label: str, op: str, inputs: list[str], shape: Shape, payload: Payload, of: Node
    ) -> str:
        name = fresh_name(f"{of.name}_{label}", self.taken)
        type, args = TensorType(shape, of.type.dtype), tuple(Ref(i) for i in inputs)
        self.nodes[name] = replace(of, name=name, op=op, args=args, type=type, payload=payload)
        return name

    def map(self, label: str, expr: Expr, inputs: list[str], of: Node) -> str:
        """A map whose first operand has its shape."""
        return self.add(label, "map", inputs, self.nodes[inputs[0]].type.shape, expr, of)

    def small(self, shape: Shape, axes: Axes) -> Shape:
        return tuple(1 if axis in axes else extent for axis, extent in enumerate(shape))

    def total(self) -> str:
        """The sums of x over the axes, which stay with size one; such as there are, if any."""
        shape = self.small(self.x.type.shape, self.found.axes)
        for user in self.graph.users[self.x.name]:
            node = self.graph[user]
            if _sums(node) and _axes(node) == self.found.axes and node.type.shape == shape:
                return user
        return self.over("each", self.x.name)

    def over(self, label: str, value: str) -> str:
        shape = self.small(self.x.type.shape, self.found.axes)
        over = Reduction("sum", self.found.axes, True)
        return self.add(label, "reduce", [value], shape, over, self.owner)

    def of(self, node: Node, value: str) -> Node:
        return replace(node, args=(Ref(value),))

    def shared(self, slot: int) -> Expr:
        """An operand's sum for each element."""
        return call("div", load(slot), size(self.each))

    def sum(self, mean: str, left: str) -> None:
        """The affine function of the mean, as often as x has elements there; the rest is summed."""
        node, below, value = self.found.sum, self.found.x, mean
        for step, axes in reversed(self.found.path):
            payload, shape = step.payload, self.small(step.type.shape, axes)
            inputs = [value if name == below else name for name in step.inputs]
            if left and isinstance(payload, Expr):
                slope = _slope(payload, step.inputs.index(below))
                assert slope is not None
                payload = call("add", payload, _times(slope, self.shared(len(inputs))))
                inputs, left = [*inputs, left], ""
            elif left:
                left = self.add("left", step.op, [left], shape, payload, step)
            value = self.add("of_mean", step.op, inputs, shape, payload, step)
            below = step.name
        if not self.averaged(value):
            value = self.map("each", call("mul", load(0), size(self.each)), [value], node)
        changed = self.of(node, value)
        if _count(self.nodes[value], _axes(node)) == 1:
            changed = replace(changed, op="view", payload=View("reshape"))
        self.nodes[node.name] = changed

    def averaged(self, value: str) -> bool:
        """Whether what reads the sum divides it by the number of its elements; fewer are left."""
        node = self.found.sum
        (operand,) = node.inputs
        divided = call("div", load(0), size(_count(self.graph[operand], _axes(node))))
        users = [self.graph[name] for name in self.graph.users[node.name]]
        if node.name in self.graph.results or any(u.payload is not divided for u in users):
            return False
        left = _count(self.nodes[value], _axes(node))
        mean = load(0) if left == 1 else call("div", load(0), size(left))
        for user in users:
            self.nodes[user.name] = replace(user, payload=mean)
        return True

    def nest(self, node: Node, own: str, mean: str, left: str) -> None:
        """A sum around the mean over more axes, from those around their own means."""
        value = self.graph[node.inputs[0]]
        squared = value.payload is SQUARE
        whole = (self.graph[value.inputs[0]] if squared else value).inputs[1]
        apart = call("add", call("sub", load(0), load(1)), self.shared(2))
        merged = call("mul", size(self.each), call("square", apart) if squared else apart)
        inputs = [mean, whole, left]
        if squared:
            inputs.append(self.over("squares", self.map("square", SQUARE, [own], node)))
            merged = call("add", load(3), merged)
        self.nodes[node.name] = self.of(node, self.map("merged", merged, inputs, node))
