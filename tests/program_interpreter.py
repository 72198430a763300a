"""A second reading of a Plan: its programs are run by torch over index grids, in float64.

It knows nothing of the emitter or of C++: every atom is an axis of a grid, an access gathers at the
sum of its strides from its offset on, a stage reduces over the grid, a store scatters. What it
computes must be what the graph computes, whatever the planner did. Stores go into NaN, so that an
element that is not written shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import sympy
import torch

from kernelwright import interpret
from kernelwright.expr import evaluate, leaves
from kernelwright.graph import Graph, Scalar
from kernelwright.lower.schedule import schedule
from kernelwright.plan import (
    Access,
    Attention,
    Buffer,
    Coordinate,
    Operand,
    Plan,
    Program,
    Range,
    Region,
    Store,
    decompose,
    element_type,
    needs_whole_tiles,
)
from kernelwright.scalars import as_number

Tensor = torch.Tensor
Instead = Callable[[Region, Callable[[str], Any], dict[str, Any], Any], bool]
Convolve = Callable[[Region, Callable[[str], Any], dict[str, Any], Any], "Program | None"]


def run_plan(
    plan: Plan,
    module: torch.nn.Module,
    inputs: tuple[Tensor, ...],
    block_n: int | None = None,
    convolve: Convolve | None = None,
    instead: Instead | None = None,
) -> Any:
    """The outputs of the plan."""
    return carry_out_plan(plan, module, inputs, block_n, convolve, instead)[0]


def carry_out_plan(
    plan: Plan,
    module: torch.nn.Module,
    inputs: tuple[Tensor, ...],
    block_n: int | None = None,
    convolve: Convolve | None = None,
    instead: Instead | None = None,
) -> tuple[Any, dict[str, Tensor]]:
    """The outputs of the plan, region by region, in its order; and the buffers after the call.

    With `block_n`, generated products run in their two parts, over tiles of so many columns. With
    `convolve`, it runs what the tiles of generated convolutions do, and gives what follows. What
    `instead` runs, and says so, is not interpreted.
    """
    graph = plan.graph
    values = interpret._sources(graph, module, inputs)
    sizes = {s: values[name].shape[axis] for s, (name, axis) in graph.symbols.items()}

    def number(dim: Any) -> int:
        if isinstance(dim, int):
            return dim
        return int(
            dim.subs({sympy.Symbol(k, integer=True, positive=True): v for k, v in sizes.items()})
        )

    wide = interpret.in_float64(inputs)

    def look(value: Any) -> Any:
        if isinstance(value, interpret.Ref):
            return value_of(value.name)
        if isinstance(value, torch.dtype):
            return torch.float64 if wide and value.is_floating_point else value
        if isinstance(value, sympy.Expr):
            return number(value)
        if isinstance(value, Scalar):
            known = {sympy.Symbol(k, integer=True, positive=True): v for k, v in sizes.items()}
            return as_number(value, known, {s: look(ref).item() for s, ref in value.items})
        if isinstance(value, tuple | list):
            found = [look(v) for v in value]
            return tuple(found) if isinstance(value, tuple) else found
        return {k: look(v) for k, v in value.items()} if isinstance(value, dict) else value

    def value_of(name: str) -> Any:
        if name not in values and graph[name].op == "view":
            return interpret.carry_out(graph[name], look)
        return values[name]

    def run(program: Program, partials: tuple[Buffer, ...] = (), width: int = 0) -> None:
        schedule(program)  # its invariants hold for every program that is planned
        buffers = {a.buffer: value_of(a.buffer) for a in program.loads}
        values.update(_Run(program, buffers, graph, number, partials, width).results())

    for region in plan.regions:
        if region.call is not None:
            called = region.call
            made = interpret.resolve(called.target)(
                *(look(a) for a in called.args), **{k: look(v) for k, v in called.kwargs}
            )
            made = made.permute(called.order) if called.order else made
            generated = region.gemm or region.conv
            values[generated.product if generated else region.outputs[0].name] = made
        if region.attention is not None:
            values[region.attention.mixed] = _attended(region.attention, value_of, graph, number)
        if region.program is None:
            continue
        if instead is not None and instead(region, value_of, values, number):
            continue
        if region.conv is not None and convolve is not None:
            finish = convolve(region, value_of, values, number)
            if finish is not None:
                run(finish)
            continue
        if region.gemm is None or block_n is None:
            run(region.program)
            continue
        seat = decompose(region.program, block_n, set(graph.by_name))
        run(seat.epilogue, seat.partials, block_n)
        if seat.finish is not None:
            run(seat.finish)
    written = {buffer: value_of(value) for buffer, value in graph.mutations}
    return look(graph.outputs), written


def _attended(made: Attention, value_of: Callable[[str], Any], graph: Graph, number: Any) -> Tensor:
    """Softmax of the scores times values: operands by their strides, scores by their program."""

    def matrices(operand: Operand, rows: int, depth: int) -> Tensor:
        sizes = (*map(number, made.batch), rows, depth)
        strides = (operand.outer, operand.inner, operand.row, operand.depth)
        places = torch.full((1, 1, 1, 1), number(operand.offset), dtype=torch.long)
        for axis, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
            along = torch.arange(size).reshape([-1 if i == axis else 1 for i in range(4)])
            places = places + along * number(stride)
        return value_of(operand.buffer).contiguous().reshape(-1)[places].double()

    query = matrices(made.query, made.rows, made.depth)
    key = matrices(made.key, made.keys, made.depth)
    value = matrices(made.value, made.columns, made.keys)
    product = query @ key.mT
    others = {a.buffer for a in made.scores.loads} - {made.product}
    buffers = {name: value_of(name) for name in others} | {made.product: product}
    scores = _Run(made.scores, buffers, graph, number, (), 0).contributions()
    scores = scores.reshape(product.shape)
    largest = scores.amax(dim=-1, keepdim=True)
    powers = torch.exp(scores - torch.where(largest == -math.inf, 0.0, largest))
    total = powers.sum(dim=-1, keepdim=True)
    return powers * evaluate(made.weight, {("acc", 0): largest, ("acc", 1): total}) @ value.mT


class _Run:
    """One program over grids, one axis an atom.

    In tiles of `width` columns, a stage over the row leaves partial results; it is then not known,
    or for each tile its own.
    """

    def __init__(
        self,
        program: Program,
        buffers: dict[str, Tensor],
        graph: Graph,
        number: Any,
        partials: tuple[Buffer, ...],
        width: int,
    ) -> None:
        self.program, self.graph, self.number = program, graph, number
        self.buffers, self.width = buffers, width
        self.partials = {b.name: b for b in partials}
        self.order = [*program.rows, *program.elements]
        self.shape = [number(program.sizes[a]) for a in self.order]
        self.grid = {
            atom: torch.arange(size).reshape([-1 if i == k else 1 for k in range(len(self.order))])
            for i, (atom, size) in enumerate(zip(self.order, self.shape, strict=True))
        }

    def offsets(self, at: Coordinate) -> Tensor:
        total = torch.full([1] * len(self.order), self.number(at.offset), dtype=torch.long)
        for atom, stride in at.strides:
            total = total + self.grid[atom] * self.number(stride)
        return total

    def inside(self, part: Range) -> Tensor:
        place = self.offsets(part.at)
        found = torch.ones_like(place, dtype=torch.bool)
        if part.low is not None:
            found &= place >= self.number(part.low)
        if part.high is not None:
            found &= place < self.number(part.high)
        return found

    def loaded(self, access: Access) -> Tensor:
        """NaN where it must not be read: a kernel may have anything there."""
        flat = self.buffers[access.buffer].contiguous().reshape(-1)
        places, allowed = self.offsets(access.at), torch.tensor(True)
        for part in access.within:
            allowed = allowed & self.inside(part)
        places, allowed = torch.broadcast_tensors(places, allowed)
        taken = flat[torch.where(allowed, places, 0)].double()
        return torch.where(allowed, taken, float("nan"))

    def contributions(self) -> Tensor:
        """Of the first stage, element by element."""
        return evaluate(self.program.stages[0].expr, self.environment()).expand(self.shape)

    def environment(self) -> dict[Any, Tensor]:
        program = self.program
        env: dict[Any, Tensor] = {}
        for access in program.loads:
            env[access] = self.loaded(access)
        for part in program.ranges:
            env["inside", part] = self.inside(part).double()
        for expr in program.exprs:
            for leaf in leaves(expr, "index"):
                env["index", leaf.value] = self.offsets(leaf.value).double()
            for leaf in leaves(expr, "size"):
                value = float(self.number(leaf.value))
                env["size", leaf.value] = torch.tensor(value, dtype=torch.float64)
        return env

    def results(self) -> dict[str, Tensor]:
        program, env = self.program, self.environment()
        results = {}
        names = iter(self.partials)
        for index, stage in enumerate(program.stages):
            full = evaluate(stage.expr, env).expand(self.shape)
            if self.width and not stage.segment:
                partial = self.by_tiles(full, interpret.COMBINE[stage.kind])
                results[next(names)] = partial
                env["acc", index] = self.own_results(partial)
                continue
            for axis in [self.order.index(a) for a in self.span(stage.segment)]:
                full = interpret.COMBINE[stage.kind](full, axis)
            env["acc", index] = full
        return results | {s.access.buffer: self.stored(s, env) for s in program.stores}

    def span(self, segment: bool) -> tuple[int, ...]:
        return self.program.inner if segment else self.program.elements

    def own_results(self, partial: Tensor) -> Tensor:
        """What a tile knows of the whole row: its own result, if it may go on with that."""
        if not needs_whole_tiles(self.program):
            return torch.full([1] * len(self.order), float("nan")).double()
        return partial.repeat_interleave(self.width, -1).reshape(self.shape)

    def by_tiles(self, full: Tensor, combine: Any) -> Tensor:
        rows = full.flatten(len(self.program.rows))
        tiles = [combine(tile, -1) for tile in rows.split(self.width, -1)]
        return torch.cat(tiles, -1)

    def stored(self, store: Store, env: dict[Any, Tensor]) -> Tensor:
        program, name = self.program, store.access.buffer
        kept = {
            "element": self.order,
            "segment": [*program.rows, *program.outer],
            "row": list(program.rows),
        }[store.level]
        wanted = [s if a in kept else 1 for a, s in zip(self.order, self.shape, strict=True)]
        value = evaluate(store.expr, env).expand(wanted)
        partial = self.partials.get(name)
        shape = partial.shape if partial else self.graph[name].type.shape
        sizes = [self.number(d) for d in shape]
        flat = torch.full((math.prod(sizes),), float("nan"), dtype=torch.float64)
        flat[self.offsets(store.access.at).expand(wanted).reshape(-1)] = value.reshape(-1).clone()
        result = flat.reshape(sizes)
        boolean = element_type(self.graph, name) is torch.bool
        return result.to(torch.bool) if boolean else result
