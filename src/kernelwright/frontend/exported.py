"""A program of torch.export becomes a module over its own tensors, called as the model was.

In: an ExportedProgram. Out: an nn.Module, and the example that the program was exported with. The
one idea: the program's flat inputs and outputs are taken out of the user's arguments, and put into
the user's structures, by operations of the graph itself, so that its code is all there is to it.
"""

from __future__ import annotations

import operator
from typing import Any

from torch import fx, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from kernelwright.errors import UnsupportedError
from kernelwright.frontend.graphs import written
from kernelwright.graph import fresh_name, identifier

CONTAINERS = (dict, list, tuple)


def as_module(program: ExportedProgram) -> nn.Module:
    """The module that the program is, with parameters and buffers where the model had them."""
    flat = program.module(check_guards=False)
    assert isinstance(flat, fx.GraphModule)
    given = flat.graph.find_nodes(op="placeholder")
    args, kwargs = program.call_spec.in_spec.unflatten(given)
    signature = program.module_call_graph[0].signature
    names = list((signature and signature.forward_arg_names) or ())
    names = names[: len(args)] or [f"argument_{i}" for i in range(len(args))]
    graph, values, taken = fx.Graph(), dict[fx.Node, Any](), set(dir(nn.Module()))
    parts = []
    for name, part in (*zip(names, args, strict=True), *kwargs.items()):
        parts.append((graph.placeholder(fresh_name(identifier(name), taken)), part))
    for made, part in parts:
        _taken(graph, made, part, values)
    outputs = graph.graph_copy(flat.graph, values)
    graph.output(_given_back(program.call_spec.out_spec, list(outputs)))
    return written(fx.GraphModule(flat, graph, "ExportedModel"))


def _taken(graph: fx.Graph, made: fx.Node, part: Any, values: dict[fx.Node, Any]) -> None:
    """The leaves of an argument, each by its place."""
    if isinstance(part, fx.Node):
        values[part] = made
        return
    if type(part) not in CONTAINERS:
        raise UnsupportedError(
            f"The program takes a {type(part).__name__}; export it with tensors in lists, tuples "
            "and dicts."
        )
    for key, inner in part.items() if isinstance(part, dict) else enumerate(part):
        _taken(graph, graph.call_function(operator.getitem, (made, key)), inner, values)


def _given_back(spec: Any, outputs: list[Any]) -> Any:
    found = pytree.tree_unflatten(outputs, spec)
    leaves = [found]
    while leaves:
        part = leaves.pop()
        if type(part) in CONTAINERS:
            leaves += part.values() if isinstance(part, dict) else part
        elif not isinstance(part, fx.Node | int | float | str | None):
            raise UnsupportedError(
                f"The program returns a {type(part).__name__}; export it with a result of tensors "
                "in lists, tuples and dicts."
            )
    return found
