"""A second reading of a Plan: its programs are run by torch over index grids, in float64.

It knows nothing of the emitter or of C++: every atom is an axis of a grid, an access gathers at the
sum of its strides, a stage reduces over the grid, a store scatters. What it computes must be what
the graph computes, whatever the planner did. Stores go into NaN, so that an element that is not
written shows.
"""

from __future__ import annotations

from typing import Any

import sympy
import torch

from kernelwright import interpret
from kernelwright.expr import evaluate, leaves
from kernelwright.graph import Graph, map_refs
from kernelwright.lower.schedule import schedule
from kernelwright.plan import Access, Plan, Program

Tensor = torch.Tensor


def run_plan(plan: Plan, module: torch.nn.Module, inputs: tuple[Tensor, ...]) -> Any:
    """The outputs of the plan, region by region, in the order of the plan."""
    graph = plan.graph
    values = interpret._sources(graph, module, inputs)
    sizes = {s: values[name].shape[axis] for s, (name, axis) in graph.symbols.items()}

    def number(dim: Any) -> int:
        if isinstance(dim, int):
            return dim
        return int(
            dim.subs({sympy.Symbol(k, integer=True, positive=True): v for k, v in sizes.items()})
        )

    def look(value: Any) -> Any:
        if isinstance(value, interpret.Ref):
            return value_of(value.name)
        if isinstance(value, sympy.Expr):
            return number(value)
        return tuple(look(v) for v in value) if isinstance(value, tuple) else value

    def value_of(name: str) -> Any:
        if name not in values and graph[name].op == "view":
            return interpret._step(graph[name], look)
        return values[name]

    for region in plan.regions:
        if region.program is None:
            assert region.call is not None
            called = region.call
            made = interpret.resolve(called.target)(
                *(look(a) for a in called.args), **{k: look(v) for k, v in called.kwargs}
            )
            values[region.outputs[0].name] = made
            continue
        program = region.program
        schedule(program)  # its invariants hold for every program that is planned
        buffers = {name: value_of(name) for name in region.reads}
        for name, result in _run(program, buffers, graph, number).items():
            values[name] = result
    return map_refs(graph.outputs, lambda ref: value_of(ref.name))


def _run(
    program: Program, buffers: dict[str, Tensor], graph: Graph, number: Any
) -> dict[str, Tensor]:
    order = [*program.rows, *program.elements]
    shape = [number(program.sizes[a]) for a in order]
    grid = {
        atom: torch.arange(size).reshape([-1 if i == k else 1 for k in range(len(order))])
        for i, (atom, size) in enumerate(zip(order, shape, strict=True))
    }

    def offsets(access: Access) -> Tensor:
        total = torch.zeros([1] * len(order), dtype=torch.long)
        for atom, stride in access.strides:
            total = total + grid[atom] * number(stride)
        return total

    env: dict[Any, Tensor] = {}
    for access in program.loads:
        env[access] = buffers[access.buffer].contiguous().reshape(-1)[offsets(access)].double()
    for expr in program.exprs:
        for leaf in leaves(expr, "size"):
            env["size", leaf.value] = torch.tensor(float(number(leaf.value)), dtype=torch.float64)
    for index, stage in enumerate(program.stages):
        atoms = program.inner if stage.segment else program.elements
        full = evaluate(stage.expr, env).expand(shape)
        for axis in [order.index(a) for a in atoms]:
            full = interpret.COMBINE[stage.kind](full, axis)
        env["acc", index] = full
    results = {}
    levels = {
        "element": order,
        "segment": [*program.rows, *program.outer],
        "row": list(program.rows),
    }
    for store in program.stores:
        kept = levels[store.level]
        where = offsets(store.access)
        wanted = [s if a in kept else 1 for a, s in zip(order, shape, strict=True)]
        value = evaluate(store.expr, env).expand(wanted)
        node = graph[store.access.buffer]
        flat = torch.full((number(node.type.numel),), float("nan"), dtype=torch.float64)
        flat[where.expand(wanted).reshape(-1)] = value.reshape(-1).clone()
        result = flat.reshape([number(d) for d in node.type.shape])
        results[node.name] = result.to(torch.bool) if node.type.dtype is torch.bool else result
    return results
