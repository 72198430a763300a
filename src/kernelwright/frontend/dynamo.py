"""A graph of Dynamo's becomes a module: what it reads or changes as state, the rest as arguments.

In: the GraphModule that a backend of torch.compile is given, and the arguments of a call of it.
Out: a Lifted: the module, and where its tensors stand among the arguments. The one idea: Dynamo
lifts parameters and buffers to inputs. Put back they are what they are in the model, so that the
same laws, layouts and kernels apply as if the model itself had been given.
"""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._dynamo.source import is_from_unspecialized_param_buffer_source
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from kernelwright.errors import UnsupportedError
from kernelwright.frontend.graphs import written
from kernelwright.graph import fresh_name, identifier
from kernelwright.runtime.baked import described

TABLES = re.compile(r"_(?:modules|parameters|buffers)_")
NUMBERS = (bool, int, float)


@dataclass(frozen=True)
class Lifted:
    """`inputs` are the places of what forward takes, `state` of what stands on the module by name.

    `numbers` are those that the module has as constants, and `writes` of tensors that a call
    changes. `fixed` says that Dynamo has pinned every size down, so that one look is enough; `text`
    is the forward, and what its names stand for.
    """

    module: nn.Module
    inputs: tuple[int, ...]
    state: dict[str, int]
    numbers: tuple[int, ...]
    writes: tuple[int, ...]
    fixed: bool
    text: str


def lifted(graph_module: fx.GraphModule, arguments: Sequence[Any]) -> Lifted:
    """The module that a graph is, with these arguments as its example."""
    placeholders = graph_module.graph.find_nodes(op="placeholder")
    _check(graph_module, placeholders, arguments)
    writes = _written(graph_module, arguments)
    tensors = [i for i, x in enumerate(arguments) if isinstance(x, Tensor)]
    held = {i for i in tensors if i in writes or _is_state(placeholders[i], arguments[i])}
    held = writes if held.issuperset(tensors) else held
    inputs = [i for i in tensors if i not in held]
    if not inputs:
        raise UnsupportedError("the graph writes into everything that it takes")
    # The first axis of the first tensor is the batch: one that may change goes first.
    inputs.sort(key=lambda i: not _changes(_shape(placeholders[i])[:1]))

    graph, root = fx.Graph(), nn.Module()
    values: dict[fx.Node, Any] = {}
    taken, state = set(dir(nn.Module())), dict[str, int]()
    for i in inputs:
        values[placeholders[i]] = graph.placeholder(fresh_name(_readable(placeholders[i]), taken))
    for i in sorted(held):
        name = fresh_name(_readable(placeholders[i]), taken)
        state[name] = i
        _hold(root, name, arguments[i].detach() if i in writes else arguments[i])
        values[placeholders[i]] = graph.create_node("get_attr", name)
    numbers = []
    for i, place in enumerate(placeholders):
        if i not in tensors and _size(graph, place, placeholders, inputs, values) is None:
            values[place] = arguments[i]
            numbers.append(i)
    graph.output(graph.graph_copy(graph_module.graph, values))
    for node in graph.find_nodes(op="get_attr"):
        if node.target not in state:
            _hold(root, node.target, getattr(graph_module, node.target))
    code = graph.python_code("self")
    text = f"{code.src}{[(name, described(value)) for name, value in code.globals.items()]}"
    module = written(fx.GraphModule(root, graph, type(graph_module).__name__))
    places = tuple(inputs), state, tuple(numbers), tuple(sorted(writes))
    return Lifted(module, *places, all(map(_is_fixed, placeholders)), text)


def _check(
    graph_module: fx.GraphModule, placeholders: Sequence[fx.Node], arguments: Sequence[Any]
) -> None:
    for place, value in zip(placeholders, arguments, strict=True):
        if not isinstance(value, (Tensor, *NUMBERS)):
            kind = type(value).__name__
            raise UnsupportedError(f"the graph takes a {kind} ({place.name}), which is no tensor")
    if not any(isinstance(x, Tensor) for x in arguments):
        raise UnsupportedError("the graph takes no tensor")
    if any(isinstance(m, nn.Module) for m in graph_module._modules.values()):
        raise UnsupportedError("the graph calls other graphs inside of it")


def _written(graph_module: fx.GraphModule, arguments: Sequence[Any]) -> set[int]:
    """The places of tensors that the graph writes into, as fake ones tell by their versions."""
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    fakes = [
        mode.from_tensor(x, static_shapes=True) if isinstance(x, Tensor) else x for x in arguments
    ]
    before = [_look(x) for x in fakes]
    try:
        with mode:
            graph_module.forward(*fakes)
    except Exception as error:
        text = next(iter(str(error).splitlines()), "").strip()
        raise UnsupportedError(
            f"the graph cannot run on tensors without values ({type(error).__name__}: {text[:200]})"
        ) from error
    found = set()
    for i, (x, was) in enumerate(zip(fakes, before, strict=True)):
        now = _look(x)
        if was is None or now is None or was == now:
            continue
        if was[1:] != now[1:]:
            raise UnsupportedError("the graph changes the shape of one of its inputs")
        if x.requires_grad and torch.is_grad_enabled():
            raise UnsupportedError("the graph writes into a tensor that requires gradients")
        found.add(i)
    return found


def _look(x: Any) -> tuple[Any, ...] | None:
    if not isinstance(x, Tensor):
        return None
    return x._version, x.shape, x.stride(), x.storage_offset()


def _is_state(place: fx.Node, value: Any) -> bool:
    """Whether this is a parameter or a buffer of a module."""
    if isinstance(value, nn.Parameter):
        return True
    source = getattr(place, "_dynamo_source", None)
    return isinstance(value, Tensor) and (
        source is not None and is_from_unspecialized_param_buffer_source(source)
    )


def _hold(root: nn.Module, name: str, value: Any) -> None:
    if not isinstance(value, Tensor):
        raise UnsupportedError(f"the graph holds a {type(value).__name__}, which is no tensor")
    if isinstance(value, nn.Parameter):
        root.register_parameter(name, value)
    else:
        root.register_buffer(name, value)


def _readable(place: fx.Node) -> str:
    """`lin_weight` of `L_self_modules_lin_parameters_weight_`, and `x` of `L_x_`."""
    text = str(place.target).removeprefix("L_").removeprefix("l_")
    root, *inside = TABLES.split(text)
    text = identifier("_".join(inside) or root)
    return f"{text}_value" if keyword.iskeyword(text) or hasattr(builtins, text) else text


def _shape(place: fx.Node) -> tuple[Any, ...]:
    """The sizes as Dynamo has them: a symbol where they may change."""
    known = place.meta.get("example_value")
    return tuple(known.shape) if isinstance(known, Tensor) else ()


def _changes(sizes: Sequence[Any]) -> bool:
    return any(isinstance(size, torch.SymInt) for size in sizes)


def _is_fixed(place: fx.Node) -> bool:
    """Whether Dynamo's guards leave nothing open that a trace takes for granted."""
    known = place.meta.get("example_value")
    if not isinstance(known, Tensor):
        return isinstance(known, NUMBERS)
    return not _changes((*known.shape, *known.stride(), known.storage_offset()))


def _size(
    graph: fx.Graph,
    place: fx.Node,
    placeholders: Sequence[fx.Node],
    inputs: Sequence[int],
    values: dict[fx.Node, Any],
) -> fx.Node | None:
    """A size that comes by itself is read off a tensor that has it, if there is one."""
    symbol = place.meta.get("example_value")
    if not isinstance(symbol, torch.SymInt):
        return None
    for i in inputs:
        for axis, size in enumerate(_shape(placeholders[i])):
            if isinstance(size, torch.SymInt) and size.node.expr == symbol.node.expr:
                of = values[placeholders[i]], axis
                values[place] = graph.call_function(torch.ops.aten.sym_size.int, of)
                return place
    return None
