"""One sample may lie otherwise than several.

In: a Problem and its captured Graph. Out: the same Graph, with a guard against one sample where
eager's results then share other memory, or lie in another order. `x.transpose(0, 1).contiguous()`
is a copy of several samples and the very memory of one; what is compiled for several is always a
copy. `x.movedim(2, 0).exp().flatten(0, 1)` is a copy in order of several, and of one a view.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import sympy
import torch
from torch.utils import _pytree as pytree

from kernelwright.graph import Dim, Graph, Guard, Ref
from kernelwright.probe import Lies, lies
from kernelwright.problem import Problem
from kernelwright.tracing import several

Steps = tuple[int, ...] | None


def example_sizes(problem: Problem, graph: Graph) -> dict[str, int]:
    """The free sizes of a graph in the example."""
    tensors = dict(zip((n.name for n in graph if n.op == "input"), problem.tensors, strict=True))
    return {symbol: tensors[name].shape[axis] for symbol, (name, axis) in graph.symbols.items()}


def apart_from_one(problem: Problem, graph: Graph, known: Lies | None) -> Graph:
    """The graph, guarded against one sample where its results would not lie as eager's.

    `known` is how the example's own results lie.
    """
    more = several(problem)
    lying = (known if more is problem else lies(more)) if graph.symbols else None
    if lying is None:
        return graph
    guards = graph.contract.guards
    found = [guard for s in graph.symbols for guard in _against_one(more, graph, s, lying)]
    return replace(graph, contract=replace(graph.contract, guards=(*guards, *found)))


def _against_one(problem: Problem, graph: Graph, symbol: str, lying: Lies) -> Iterator[Guard]:
    """One guard at most, with the place of the first result that lies otherwise then."""
    usual = example_sizes(problem, graph)
    sizes = {**usual, symbol: 1}
    if not all(guard.holds(sizes) for guard in graph.contract.guards):
        return
    alone = lies(_of_sizes(problem, graph, sizes)) or lying
    leaves = pytree.tree_leaves(graph.outputs)
    for leaf, one, memory, steps, known in zip(leaves, *alone[:2], *lying[:2], strict=True):
        if not isinstance(leaf, Ref):
            continue
        shape = graph[leaf.name].type.shape
        of_one, of_several = ([_number(d, n) for d in shape] for n in (sizes, usual))
        if memory != known or not _in_order(of_one, one, of_several, steps):
            size = sympy.Symbol(symbol, integer=True, positive=True)
            yield Guard(sympy.Ne(size, 1), graph[leaf.name].origin.place)
            return


def _in_order(shape: list[int], strides: Steps, usual: list[int], usual_strides: Steps) -> bool:
    """Whether this lies dense in the order in which the usual shape does, if that does."""
    if strides is None or usual_strides is None:
        return True
    steps = dict(enumerate(usual_strides))
    order = sorted((i for i, n in enumerate(usual) if n != 1), key=steps.__getitem__)
    if not _dense(order, usual, usual_strides):
        return True
    return _dense([i for i in order if shape[i] != 1], shape, strides)


def _dense(order: list[int], shape: list[int], strides: tuple[int, ...]) -> bool:
    step = 1
    for i in order:
        if strides[i] != step:
            return False
        step *= shape[i]
    return True


def _of_sizes(problem: Problem, graph: Graph, sizes: Mapping[str, int]) -> Problem:
    """The example with the first so many samples of each input."""
    shapes = iter([n.type.shape for n in graph if n.op == "input"])

    def first(x: torch.Tensor) -> torch.Tensor:
        return x[tuple(slice(_number(size, sizes)) for size in next(shapes))]

    given = (problem.inputs, dict(problem.kwargs))
    inputs, kwargs = pytree.tree_map_only(torch.Tensor, first, given)
    return replace(problem, inputs=inputs, kwargs=kwargs)


def _number(size: Dim, sizes: Mapping[str, int]) -> int:
    if isinstance(size, int):
        return size
    return int(size.subs({s: sizes[str(s)] for s in size.free_symbols}))
