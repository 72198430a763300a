"""A program of torch.export becomes a module over its own tensors, called as the model was.

In: an ExportedProgram. Out: an nn.Module, and the example that the program was exported with. The
one idea: the program's flat inputs and outputs are taken out of the user's arguments, and put into
the user's structures, by operations of the graph itself, so that its code is all there is to it.
"""

from __future__ import annotations

import inspect
import operator
import re
import types
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from kernelwright.errors import InputError, UnsupportedError
from kernelwright.frontend.graphs import written
from kernelwright.graph import fresh_name, identifier

CONTAINERS = (dict, list, tuple)
TEXT = '''{imports}

PROGRAM = "{path}"


class Model(torch.nn.Module):
    """The graph of an exported program, over the tensors of its file."""

    def __init__(self):
        super().__init__()
        root = torch.export.load(PROGRAM).module(check_guards=False)
        for table in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            getattr(self, table).update(getattr(root, table))

{forward}


def get_inputs():
    """Those that the program was exported with."""
    args, kwargs = torch.export.load(PROGRAM).example_inputs
    return {{{inputs}}}
'''


def as_module(program: ExportedProgram) -> nn.Module:
    """The module that the program is, with parameters and buffers where the model had them."""
    return written(_graph_module(program))


def load(path: str | Path) -> ExportedProgram:
    """The program that a .pt2 file holds."""
    try:
        return torch.export.load(path)
    except Exception as error:
        told = next(iter(str(error).splitlines()), "")
        raise InputError(
            f"{path} cannot be loaded as an exported program ({type(error).__name__}: {told}); "
            "write it with torch.export.save."
        ) from error


def model_text(path: Path) -> str:
    """A model file for what a .pt2 holds: the code of its graph, over the tensors in the file."""
    program = load(path)
    code = _graph_module(program).graph.python_code("self")
    if program.example_inputs is None:
        raise InputError(f"{path} has no example inputs; export it with torch.export.export.")
    args, kwargs = program.example_inputs
    names = [p for p in inspect.signature(as_module(program).forward).parameters]
    given = {**dict(zip(names, range(len(args)), strict=False)), **kwargs}
    forward = code.src[code.src.index("def forward(") :].rstrip()
    used = [name for name in code.globals if re.search(rf"\b{name}\b", forward)]
    lines = [_import(name, code.globals[name]) for name in used]
    return TEXT.format(
        imports="\n".join(sorted({*lines, "import torch"})),
        path=str(path.resolve()),
        forward="\n".join(f"    {line}".rstrip() for line in forward.splitlines()),
        inputs=", ".join(
            f'"{name}": {f"args[{at}]" if name in names[: len(args)] else f"kwargs[{name!r}]"}'
            for name, at in given.items()
        ),
    )


def _import(name: str, value: Any) -> str:
    if isinstance(value, types.ModuleType):
        return f"import {value.__name__}" + ("" if value.__name__ == name else f" as {name}")
    if isinstance(value, float):
        return f"{name} = float({str(value)!r})"
    home = getattr(value, "__module__", None)
    if home is None or not hasattr(value, "__name__"):
        raise UnsupportedError(f"The program uses {name}, which a model file cannot name.")
    return f"from {home} import {value.__name__} as {name}"


def _graph_module(program: ExportedProgram) -> fx.GraphModule:
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
    outputs: Any = graph.graph_copy(flat.graph, values)
    graph.output(_given_back(program.call_spec.out_spec, list(outputs)))
    return fx.GraphModule(flat, graph, "ExportedModel")


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
