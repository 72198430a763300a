"""The invariants of Graph and Expr, checked between passes.

In: a Graph and the name of the pass that made it. Out: nothing, or a SpecError that names the pass,
the node and the broken invariant. A SpecError is always a bug of kernelwright, never of the user's
model: it stops a wrong graph at the pass that made it, before it becomes a wrong kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import sympy

from kernelwright.expr import OPS, Expr, leaves, postorder
from kernelwright.graph import (
    PRIMITIVES,
    SOURCES,
    Call,
    Cat,
    Contraction,
    Graph,
    Node,
    Reduction,
    Ref,
    Shape,
    View,
    Windows,
    as_dim,
    broadcast,
    product,
    refs,
)
from kernelwright.plan.model import Attention, Coordinate, Gemm, Plan, Program, Range, Region

# The passes whose graphs still hold ATen composites; after them there are primitives only.
COMPOSITE_STAGES = ("capture", "rewrite")
REDUCTIONS = ("sum", "max", "min", "prod")


class SpecError(AssertionError):
    """A pass has broken an invariant."""


def check_graph(graph: Graph, stage: str) -> None:
    """Raise a SpecError if the graph, as `stage` leaves it, is not well formed."""
    seen: set[str] = set()
    for node in graph:
        for why in _node_faults(graph, node, seen, stage):
            raise SpecError(f"after {stage}, in {node}: {why}")
        seen.add(node.name)
    for name in graph.results:
        if name not in seen:
            raise SpecError(f"after {stage}: the result %{name} is not computed")
    buffers = {graph.targets.get(n.name) for n in graph if n.op == "buffer"}
    for buffer in [*(b for b, _ in graph.mutations), *(c.buffer for c in graph.counters)]:
        if buffer not in buffers:
            raise SpecError(f"after {stage}: {buffer} is written, but is no buffer of the graph")


def check_expr(expr: Expr) -> None:
    """Raise a SpecError unless every op is known, has its arguments, and every leaf its value."""
    for e in postorder(expr):
        if e.op == "const":
            fault = None if isinstance(e.value, float) and not e.args else "needs one float"
        elif e.op == "acc":
            is_index = isinstance(e.value, int) and e.value >= 0
            fault = None if is_index and not e.args else "needs the index of a reduction"
        elif e.op == "size":
            fault = None if isinstance(e.value, sympy.Expr) and not e.args else "needs a dimension"
        elif e.op == "index":
            known = isinstance(e.value, int | Coordinate) and not e.args
            fault = None if known else "needs an axis or a coordinate"
        elif e.op == "inside":
            fault = None if isinstance(e.value, Range) and not e.args else "needs a range"
        elif e.op == "load":
            fault = None if e.value is not None and not e.args else "needs a key"
        elif e.op not in OPS:
            fault = "is no row of the op table"
        elif len(e.args) != OPS[e.op].arity:
            fault = f"takes {OPS[e.op].arity} arguments, not {len(e.args)}"
        else:
            fault = None if e.value is None else "is no leaf, so it has no value"
        if fault:
            raise SpecError(f"the scalar op {e.op} {fault}")


def _node_faults(graph: Graph, node: Node, seen: set[str], stage: str) -> list[str]:
    """What is wrong with a node, the most basic first."""
    if node.name in seen:
        return ["the name is taken by an earlier node"]
    for name in node.inputs:
        if name not in graph.by_name:
            return [f"%{name} does not exist"]
        if name not in seen:
            return [f"%{name} is used before it is computed"]
    if node.op in SOURCES:
        return [f"a {node.op} has no arguments"] if node.args else []
    if stage in COMPOSITE_STAGES:
        return _composite_faults(node)
    if node.op not in PRIMITIVES:
        return [f"{node.op} is not one of {', '.join(PRIMITIVES)}"]
    check = PRIMITIVE_CHECKS.get(node.op)
    return check(graph, node) if check else []


def _composite_faults(node: Node) -> list[str]:
    if node.op == "getitem":
        return []
    call = node.payload
    if not isinstance(call, Call):
        return ["an ATen operator needs its Call"]
    inside = (*call.args, *(value for _, value in call.kwargs))
    return [] if inside == node.args else [f"the arguments and {call} do not agree"]


def _operands(graph: Graph, node: Node) -> list[Shape] | None:
    """The shapes of the arguments, if they are values all of them."""
    if not all(isinstance(a, Ref) for a in node.args):
        return None
    return [graph[a.name].type.shape for a in node.args]


def _map_faults(graph: Graph, node: Node) -> list[str]:
    shapes, expr = _operands(graph, node), node.payload
    if not isinstance(expr, Expr):
        return ["a map needs an Expr"]
    if shapes is None:
        return ["an operand of a map is no value"]
    check_expr(expr)
    if leaves(expr, "acc") or leaves(expr, "inside"):
        return ["a map has neither reductions nor coordinates to refer to"]
    for leaf in leaves(expr, "load"):
        slot = leaf.value
        if not isinstance(slot, int) or not 0 <= slot < len(shapes):
            return [f"${slot} is loaded, but there are {len(shapes)} operands"]
    rank = len(node.type.shape)
    for leaf in leaves(expr, "index"):
        if not isinstance(leaf.value, int) or not 0 <= leaf.value < rank:
            return [f"axis {leaf.value} is asked for, but the result has {rank}"]
    for leaf in leaves(expr, "size"):
        assert isinstance(leaf.value, sympy.Expr)
        unknown = {str(symbol) for symbol in leaf.value.free_symbols} - graph.symbols.keys()
        if unknown:
            return [f"the size {min(unknown)} is not that of any input"]
    if shapes and (common := broadcast(*shapes)) != node.type.shape:
        return [f"the operands broadcast to {common}, not to {node.type.shape}"]
    return []


def _reduce_faults(graph: Graph, node: Node) -> list[str]:
    shapes, reduction = _operands(graph, node), node.payload
    if not isinstance(reduction, Reduction):
        return ["a reduce needs a Reduction"]
    if shapes is None or len(shapes) != 1:
        return ["a reduce has one operand"]
    if reduction.kind not in REDUCTIONS:
        return [f"{reduction.kind} is not one of {', '.join(REDUCTIONS)}"]
    rank, axes = len(shapes[0]), reduction.axes
    if not axes or len(set(axes)) != len(axes) or not all(0 <= a < rank for a in axes):
        return [f"axes {axes} are not distinct axes of a tensor of rank {rank}"]
    kept = [1 if i in axes else size for i, size in enumerate(shapes[0])]
    dropped = [size for i, size in enumerate(shapes[0]) if i not in axes]
    wanted = tuple(kept if reduction.keepdim else dropped)
    return [] if wanted == node.type.shape else [f"the result has shape {wanted}"]


def _view_faults(graph: Graph, node: Node) -> list[str]:
    shapes, view = _operands(graph, node), node.payload
    if not isinstance(view, View):
        return ["a view needs a View"]
    if shapes is None or len(shapes) != 1:
        return ["a view has one operand"]
    shape, result = shapes[0], node.type.shape
    if view.kind == "permute":
        if sorted(view.dims) != list(range(len(shape))):
            return [f"{view.dims} is no permutation of the axes"]
        good = tuple(shape[d] for d in view.dims) == result
    elif view.kind == "expand":
        good = broadcast(shape, result) == result
    elif view.kind == "reshape":
        good = product(shape) == node.type.numel
    elif view.kind == "slice":
        good = _is_slice(view, shape, result)
    else:
        return [f"{view.kind} is no kind of view"]
    return [] if good else [f"{view} of {shape} is not {result}"]


def _is_slice(view: View, shape: Shape, result: Shape) -> bool:
    axis = view.dims[0]
    others = [i for i in range(len(shape)) if i != axis]
    if len(result) != len(shape) or any(shape[i] != result[i] for i in others) or view.step < 1:
        return False
    last = as_dim(view.start + view.step * (result[axis] - 1))
    size = shape[axis]
    return not (isinstance(last, int) and isinstance(size, int)) or last < max(size, 1)


def _cat_faults(graph: Graph, node: Node) -> list[str]:
    shapes, cat = _operands(graph, node), node.payload
    if not isinstance(cat, Cat):
        return ["a cat needs a Cat"]
    if not shapes:
        return ["a cat needs parts"]
    result, axis = node.type.shape, cat.axis
    for shape in shapes:
        if (*shape[:axis], *shape[axis + 1 :]) != (*result[:axis], *result[axis + 1 :]):
            return [f"a part of shape {shape} does not fit into {result}"]
    total = as_dim(sum((shape[axis] for shape in shapes), 0))
    return [] if total == result[axis] else [f"the parts have {total} places along axis {axis}"]


def _window_faults(graph: Graph, node: Node) -> list[str]:
    shapes, windows = _operands(graph, node), node.payload
    if not isinstance(windows, Windows) or not windows.slides:
        return ["a window needs its Windows"]
    if shapes is None or len(shapes) != 1:
        return ["a window has one operand"]
    (shape,), rank = shapes, len(shapes[0])
    moved = [s.axis for s in windows.slides]
    if len(set(moved)) != len(moved) or not all(0 <= a < rank for a in moved):
        return [f"axes {moved} are not distinct axes of a tensor of rank {rank}"]
    if node.type.shape[rank:] != tuple(s.size for s in windows.slides):
        return ["its last axes are not its windows"]
    if any(node.type.shape[i] != d for i, d in enumerate(shape) if i not in moved):
        return ["an axis without windows has changed"]
    known = [isinstance(d, int) for a in moved for d in (shape[a], node.type.shape[a])]
    return [] if all(known) else ["windows move along an axis of unknown size"]


def _call_faults(graph: Graph, node: Node) -> list[str]:
    call = node.payload
    if not isinstance(call, Call):
        return ["an opaque node needs the Call that it stands for"]
    missing = set(refs((call.args, call.kwargs))) - graph.by_name.keys()
    return [f"%{sorted(missing)[0]} does not exist"] if missing else []


def _contraction_faults(graph: Graph, node: Node) -> list[str]:
    contraction, shapes = node.payload, _operands(graph, node)
    if not isinstance(contraction, Contraction):
        return ["a contract needs its Contraction"]
    if shapes is None or len(shapes) != 2:
        return ["a contract has two operands"]
    indices = (contraction.left, contraction.right, contraction.out)
    for index, shape in zip(indices, (*shapes, node.type.shape), strict=True):
        if len(index) != len(shape):
            return [f"{len(index)} places for a tensor of shape {shape}"]
        for place, size in zip(index, shape, strict=True) if contraction.is_product else ():
            walked = product([contraction.sizes[a] for a, _ in place.terms])
            if walked != size:
                return [f"an axis of {size} places is walked in {walked} steps"]
    return []


PRIMITIVE_CHECKS: dict[str, Callable[[Graph, Node], list[str]]] = {
    "map": _map_faults,
    "reduce": _reduce_faults,
    "view": _view_faults,
    "cat": _cat_faults,
    "window": _window_faults,
    "contract": _contraction_faults,
    "opaque": _call_faults,
}


def check_plan(plan: Plan) -> None:
    """Raise a SpecError unless every region reads what exists and its program is well formed."""
    graph = plan.graph
    made = {n.name for n in graph if n.op in SOURCES}
    for region in plan.regions:
        for name in region.reads:
            base = graph.base(name)
            if base not in made:
                raise SpecError(f"in the plan, {region.name} reads %{base} before it is made")
        if region.program is not None:
            for why in _program_faults(region.program):
                raise SpecError(f"in the plan, the program of {region.name}: {why}")
        if region.gemm is not None:
            for why in _gemm_faults(region, region.gemm):
                raise SpecError(f"in the plan, the product of {region.name}: {why}")
        if region.attention is not None:
            for why in _attention_faults(region, region.attention):
                raise SpecError(f"in the plan, the attention of {region.name}: {why}")
        made |= {b.name for b in region.outputs}


def _gemm_faults(region: Region, gemm: Gemm) -> Iterator[str]:
    loads = region.program.loads if region.program else []
    if [a.buffer for a in loads].count(gemm.product) != 1:
        yield "its program does not read it in one way"
    if missing := {a.buffer for a in loads} - {*region.reads, gemm.product}:
        yield f"its program reads {sorted(missing)[0]}, which the region does not"
    if {*region.outputs} != {*gemm.library[-1].outputs}:
        yield "the library's way gives other results"


def _attention_faults(region: Region, attention: Attention) -> Iterator[str]:
    programs = {attention.product: attention.scores, attention.mixed: region.program}
    for value, program in programs.items():
        loads = program.loads if program else []
        if [a.buffer for a in loads].count(value) != 1:
            yield f"no program reads {value} in one way"
        if missing := {a.buffer for a in loads} - {*region.reads, value}:
            yield f"a program reads {sorted(missing)[0]}, which the region does not"
    yield from _program_faults(attention.scores)
    if attention.library and {*region.outputs} != {*attention.library[-1].outputs}:
        yield "the steps apart give other results"


def _program_faults(program: Program) -> Iterator[str]:
    atoms = {*program.rows, *program.elements}
    if atoms != set(program.sizes) or len(atoms) != len(program.rows) + len(program.elements):
        yield "its axes are not each a row axis or an element axis"
    if program.segmented and program.strided:
        yield "it has segments, but its elements are not neighbours"
    for index, stage in enumerate(program.stages):
        check_expr(stage.expr)
        if any(int(str(e.value)) >= index for e in leaves(stage.expr, "acc")):
            yield f"stage {stage.name} uses a result that is not there yet"
        if stage.segment and not program.segmented:
            yield f"stage {stage.name} runs over segments, and there are none"
    levels = {
        "element": atoms,
        "segment": {*program.rows, *program.outer},
        "row": set(program.rows),
    }
    for store in program.stores:
        check_expr(store.expr)
        if store.access.atoms != levels[store.level]:
            yield f"the store of {store.access.buffer} does not write each {store.level} once"
