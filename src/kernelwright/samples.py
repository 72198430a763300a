"""One sample may lie otherwise than several.

In: a Problem and its captured Graph. Out: the same Graph, with a guard against one sample where
eager's results then share other memory. `x.transpose(0, 1).contiguous()` is a copy of several
samples and the very memory of one; what is compiled for several is always a copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import sympy
import torch
from torch.utils import _pytree as pytree

from kernelwright.graph import Dim, Graph, Guard, Ref
from kernelwright.probe import Memory, memory_of
from kernelwright.problem import Problem
from kernelwright.tracing import several


def example_sizes(problem: Problem, graph: Graph) -> dict[str, int]:
    """The free sizes of a graph in the example."""
    tensors = dict(zip((n.name for n in graph if n.op == "input"), problem.tensors, strict=True))
    return {symbol: tensors[name].shape[axis] for symbol, (name, axis) in graph.symbols.items()}


def apart_from_one(problem: Problem, graph: Graph, known: Memory | None) -> Graph:
    """The graph, guarded against one sample where its results would not share memory as eager's.

    `known` is the memory of the example's own results.
    """
    more = several(problem)
    memory = (known if more is problem else memory_of(more)) if graph.symbols else None
    if memory is None:
        return graph
    guards = graph.contract.guards
    found = [guard for s in graph.symbols for guard in _against_one(more, graph, s, memory)]
    return replace(graph, contract=replace(graph.contract, guards=(*guards, *found)))


def _against_one(problem: Problem, graph: Graph, symbol: str, memory: Memory) -> Iterator[Guard]:
    """One guard at most, with the place of the first result that lies in other memory then."""
    sizes = {**example_sizes(problem, graph), symbol: 1}
    if not all(guard.holds(sizes) for guard in graph.contract.guards):
        return
    alone = memory_of(_of_sizes(problem, graph, sizes)) or memory
    for leaf, one, of_several in zip(pytree.tree_leaves(graph.outputs), alone, memory, strict=True):
        if one != of_several and isinstance(leaf, Ref):
            size = sympy.Symbol(symbol, integer=True, positive=True)
            yield Guard(sympy.Ne(size, 1), graph[leaf.name].origin.place)
            return


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
