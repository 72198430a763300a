"""A Graph, at either level, is run by torch, node by node: slow, obvious, and the tests' oracle.

In: a Graph, the module that it was captured from, and inputs at any batch size. Out: what forward
returns, and the new value of every buffer that it writes. A payload says what a node does: a Call
is made, an Expr evaluated, a Reduction, a View, a Cat or Windows carried out; everything runs in
the dtype of the inputs, so the same graph gives the float64 reference.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Sequence
from functools import reduce
from typing import Any

import sympy
import torch
from torch import nn

from kernelwright.expr import Expr, evaluate, leaves
from kernelwright.graph import (
    Call,
    Cat,
    Contraction,
    Graph,
    Node,
    Reduction,
    Ref,
    Scalar,
    View,
    Windows,
)
from kernelwright.places import look_up
from kernelwright.scalars import as_number

Tensor = torch.Tensor

COMBINE: dict[str, Callable[[Tensor, int], Tensor]] = {
    "sum": lambda x, axis: x.sum(axis, keepdim=True),
    "prod": lambda x, axis: x.prod(axis, keepdim=True),
    "max": lambda x, axis: x.amax(axis, keepdim=True),
    "min": lambda x, axis: x.amin(axis, keepdim=True),
}


def run(graph: Graph, module: nn.Module, inputs: Sequence[Any]) -> tuple[Any, dict[str, Tensor]]:
    """The outputs, in the structure that forward gives them, and the buffers after the call."""
    values, look = _carried_out(graph, module, inputs)
    written = {buffer: values[value] for buffer, value in graph.mutations}
    written |= {c.buffer: module.get_buffer(c.buffer) + c.by for c in graph.counters}
    return look(graph.outputs), written


def every_value(graph: Graph, module: nn.Module, inputs: Sequence[Any]) -> dict[str, Any]:
    """What each node of the graph gives."""
    return _carried_out(graph, module, inputs)[0]


def _carried_out(
    graph: Graph, module: nn.Module, inputs: Sequence[Any]
) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    """All values by name, and how arguments are looked up in them."""
    values = _sources(graph, module, inputs)
    sizes = {
        sympy.Symbol(symbol, integer=True, positive=True): values[name].shape[axis]
        for symbol, (name, axis) in graph.symbols.items()
    }

    wide = in_float64(inputs)

    def look(value: Any) -> Any:
        if isinstance(value, Ref):
            return values[value.name]
        if isinstance(value, torch.dtype):
            return torch.float64 if wide and value.is_floating_point else value
        if isinstance(value, sympy.Expr):
            return int(value.subs(sizes))
        if isinstance(value, Scalar):
            return as_number(value, sizes, {s: look(ref).item() for s, ref in value.items})
        if isinstance(value, tuple | list):
            found = [look(v) for v in value]
            return tuple(found) if isinstance(value, tuple) else found
        if isinstance(value, dict):
            return {k: look(v) for k, v in value.items()}
        return value

    for node in graph:
        if node.name not in values:
            values[node.name] = carry_out(node, look)
    return values, look


def resolve(target: str) -> Any:
    """`torch.ops.aten.add.Tensor` as an object that can be called, and that has a schema."""
    if target == "getitem":
        return operator.getitem
    return reduce(getattr, target.removeprefix("torch.").split("."), torch)


def draws(call: Call) -> bool:
    """Whether a call draws random numbers, or nobody says that it does not."""
    tags = getattr(resolve(call.target), "tags", None)
    return tags is None or torch.Tag.nondeterministic_seeded in tags


def in_float64(inputs: Sequence[Any]) -> bool:
    """Whether this is a run in float64, so that no operator may ask for less."""
    return any(isinstance(x, Tensor) and x.dtype is torch.float64 for x in inputs)


def _sources(graph: Graph, module: nn.Module, inputs: Sequence[Any]) -> dict[str, Any]:
    held = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    tensors = iter([x for x in inputs if isinstance(x, Tensor)])
    values: dict[str, Any] = {}
    for node in graph:
        if node.op == "input":
            values[node.name] = next(tensors)
        elif node.op == "constant":
            constant = graph.constants[node.name]
            wide = constant.is_floating_point() and in_float64(inputs)
            values[node.name] = constant.double() if wide else constant
        elif node.op in ("parameter", "buffer"):
            target = graph.targets[node.name]
            values[node.name] = (
                held[target] if target in held else look_up(module, target)
            ).detach()
    return values


def carry_out(node: Node, look: Callable[[Any], Any]) -> Any:
    """One node on values that `look` finds for its arguments."""
    args = look(node.args)
    match node.payload:
        case Contraction(call=call) | (Call() as call):
            made = resolve(call.target)(*look(call.args), **{k: look(v) for k, v in call.kwargs})
            return made.permute(call.order) if call.order else made
        case Expr():
            wide = next((a.dtype for a in args if a.is_floating_point()), torch.float64)
            env: dict[Hashable, Tensor] = {
                k: a if a.is_floating_point() else a.to(wide) for k, a in enumerate(args)
            }
            for leaf in leaves(node.payload, "size"):
                env["size", leaf.value] = torch.tensor(float(look(leaf.value)), dtype=wide)
            for leaf in leaves(node.payload, "index"):
                env["index", leaf.value] = _places(look(node.type.shape), leaf.value, args[0], wide)
            full = evaluate(node.payload, env).expand(look(node.type.shape))
            return full.to(torch.bool) if node.type.dtype is torch.bool else full
        case Reduction(kind, axes, keepdim):
            total = reduce(COMBINE[kind], axes, args[0])
            return total if keepdim else total.reshape(look(node.type.shape))
        case View("permute", dims):
            return args[0].permute(dims)
        case View("expand"):
            return args[0].expand(look(node.type.shape))
        case View("slice", (axis,), start, step):
            first, count = look(start), look(node.type.shape[axis])
            return torch.ops.aten.slice(args[0], axis, first, first + step * count, step)
        case Cat(axis):
            return torch.cat(args, axis)
        case Windows():
            return _windows(args[0], node.payload, look(node.type.shape))
        case View():
            return args[0].reshape(look(node.type.shape))
    return operator.getitem(args[0], args[1])


def _windows(x: Tensor, windows: Windows, shape: Sequence[int]) -> Tensor:
    """Every window's elements, gathered; the windows become axes at the end."""
    for slide in windows.slides:
        axis, extent = slide.axis, x.shape[slide.axis]
        places = torch.arange(shape[axis]) * slide.step - slide.before
        at = (places[:, None] + torch.arange(slide.size) * slide.spread).to(x.device)
        taken = x.index_select(axis, at.clamp(0, extent - 1).flatten())
        sizes = (*x.shape[:axis], *at.shape, *x.shape[axis + 1 :])
        taken = taken.reshape(sizes).movedim(axis + 1, -1)
        there = ((at >= 0) & (at < extent)).reshape(
            *(at.shape[0] if i == axis else 1 for i in range(x.dim())), -1
        )
        x = torch.where(there, taken, windows.outside)
    return x


def _places(shape: Sequence[int], axis: Any, like: Tensor, dtype: torch.dtype) -> Tensor:
    """0, 1, 2, ... along one axis of a shape."""
    places = torch.arange(shape[axis], dtype=dtype, device=like.device)
    return places.reshape(*(-1 if i == axis else 1 for i in range(len(shape))))
