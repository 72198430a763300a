"""A graph of Dynamo's becomes a module: what it reads or changes as state, the rest as arguments.

In: the GraphModule that a backend of torch.compile is given, and the arguments of a call of it.
Out: a Lifted: the module, and where its tensors stand among the arguments. The one idea: Dynamo
lifts parameters and buffers to inputs. Put back they are what they are in the model, so that the
same laws, layouts and kernels apply as if the model itself had been given.
"""

from __future__ import annotations

import builtins
import keyword
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._dynamo.source import is_from_unspecialized_param_buffer_source
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from kernelwright.errors import UnsupportedError
from kernelwright.frontend.graphs import origin_of, written
from kernelwright.graph import fresh_name, identifier
from kernelwright.runtime.baked import described

TABLES = re.compile(r"_(?:modules|parameters|buffers)_")
NUMBERS = (bool, int, float)
NOTHING = "nothing"  # what a forward takes that has all of its tensors as state
AUTOCASTS = torch.amp.autocast_mode._enter_autocast, torch.amp.autocast_mode._exit_autocast
CHECKPOINT = torch.ops.higher_order.tag_activation_checkpoint


@dataclass(frozen=True)
class Lifted:
    """`inputs` are the places of what forward takes, `state` of what stands on the module by name.

    `numbers` are those that the module has as constants, and `writes` of tensors that a call
    changes; `own` are the names of tensors that the graph itself holds. `fixed` says that Dynamo
    has pinned every size down, so that one look is enough; `records` whether gradients are recorded
    while the forward runs, and `autocast` names the device for which that is on around the graph,
    and has become part of it; `text` is the forward, and what its names stand for.
    """

    module: nn.Module
    inputs: tuple[int, ...]
    state: dict[str, int]
    own: tuple[str, ...]
    numbers: tuple[int, ...]
    writes: tuple[int, ...]
    fixed: bool
    records: bool
    autocast: str | None
    text: str


def lifted(graph_module: fx.GraphModule, arguments: Sequence[Any]) -> Lifted:
    """The module that a graph is, with these arguments as its example."""
    placeholders = graph_module.graph.find_nodes(op="placeholder")
    plain = fx.Graph()
    plain.output(plain.graph_copy(graph_module.graph, {}))
    _inline_checkpoints(plain, graph_module)
    device = next((x.device.type for x in arguments if isinstance(x, Tensor)), "cpu")
    if torch.is_autocast_enabled(device):
        _put_autocast(plain, device)
    else:
        _drop_idle_autocasts(plain)
    records = _without_modes(plain)
    given = plain.find_nodes(op="placeholder")
    _check(plain, given, arguments)
    held_tensors = {n.target: _own(graph_module, n.target) for n in plain.find_nodes(op="get_attr")}
    writes, written_own = _written(graph_module, plain, arguments, held_tensors, records)

    tensors = [i for i, x in enumerate(arguments) if isinstance(x, Tensor)]
    held = {i for i in tensors if i in writes or _is_state(placeholders[i], arguments[i])}
    inputs = [i for i in tensors if i not in held]
    # The first axis of the first tensor is the batch: one that may change goes first.
    inputs.sort(key=lambda i: not _changes(_shape(placeholders[i])[:1]))

    graph, root = fx.Graph(), nn.Module()
    values: dict[fx.Node, Any] = {}
    taken, state = {*dir(nn.Module()), *held_tensors}, dict[str, int]()
    for i in inputs:
        values[given[i]] = graph.placeholder(fresh_name(_readable(placeholders[i]), taken))
    if not inputs:
        graph.placeholder(NOTHING)
    for i in sorted(held):
        name = fresh_name(_readable(placeholders[i]), taken)
        state[name] = i
        _hold(root, name, arguments[i].detach() if i in writes else arguments[i])
        values[given[i]] = graph.create_node("get_attr", name)
    for name, value in held_tensors.items():
        _hold(root, name, value.detach() if name in written_own else value)
    numbers = []
    for i, place in enumerate(placeholders):
        if i not in tensors:
            values[given[i]] = _size(graph, place, zip(placeholders, given, strict=True), values)
            if values[given[i]] is None:
                values[given[i]] = arguments[i]
                numbers.append(i)
    graph.output(graph.graph_copy(plain, values))
    code = graph.python_code("self")
    names = [(name, described(value)) for name, value in code.globals.items()]
    text = f"{code.src}{names}{[*map(origin_of, graph.nodes)]}"
    module = written(fx.GraphModule(root, graph, type(graph_module).__name__))
    places = tuple(inputs), state, tuple(held_tensors), tuple(numbers), tuple(sorted(writes))
    fixed = not numbers and all(map(_is_fixed, placeholders))
    autocast = device if torch.is_autocast_enabled(device) else None
    return Lifted(module, *places, fixed, records, autocast, f"{text} {records}")


def _inline_checkpoints(graph: fx.Graph, graph_module: fx.GraphModule) -> None:
    """What is to be computed again in the backward is so in any case."""
    for node in graph.find_nodes(op="call_function", target=CHECKPOINT):
        body, *given = node.args
        inside = getattr(graph_module, body.target).graph
        values = dict(zip(inside.find_nodes(op="placeholder"), given, strict=True))
        with graph.inserting_before(node):
            outputs: Any = graph.graph_copy(inside, values)
        for user in list(node.users):
            if user.target is not operator.getitem:
                raise UnsupportedError("the graph uses a checkpoint's results together")
            user.replace_all_uses_with(outputs[user.args[1]])
            graph.erase_node(user)
        graph.erase_node(node)
        if not body.users:
            graph.erase_node(body)


def _without_modes(graph: fx.Graph) -> bool:
    """Whether gradients are recorded throughout; what is not is cut off from its history."""
    switches = graph.find_nodes(op="call_function", target=torch._C._set_grad_enabled)
    calls = [n for n in graph.nodes if n.op.startswith("call_") and n.target not in AUTOCASTS]
    records = torch.is_grad_enabled()
    records |= bool(switches and calls[0] is switches[0] and switches[0].args[0])
    enabled, cut = records, []
    for node in calls:
        if node in switches:
            enabled = bool(node.args[0])
            if enabled and not records and node is not next(reversed(calls)):
                raise UnsupportedError("the graph records gradients in a part of it")
        elif records and not enabled:
            name = getattr(node.target, "__name__", str(node.target))
            if name.endswith("_") or "out" in node.kwargs or name in ("setitem", "iadd", "imul"):
                raise UnsupportedError("the graph writes into tensors while it records nothing")
            cut.append(node)
    for node in cut:
        if isinstance(node.meta.get("example_value"), Tensor):
            with graph.inserting_after(node):
                alone = graph.call_method("detach", (node,))
            node.replace_all_uses_with(alone, delete_user_cb=lambda user, a=alone: user is not a)
    for node in switches:
        graph.erase_node(node)
    return records


def _put_autocast(graph: fx.Graph, device: str) -> None:
    """What is set around the graph, in the graph."""
    dtype, cached = torch.get_autocast_dtype(device), torch.is_autocast_cache_enabled()
    first = next(n for n in graph.nodes if n.op != "placeholder")
    with graph.inserting_before(first):
        entered = graph.call_function(AUTOCASTS[0], (device, dtype, True, cached))
    with graph.inserting_before(next(reversed(graph.nodes))):
        graph.call_function(AUTOCASTS[1], (entered,))


def _drop_idle_autocasts(graph: fx.Graph) -> None:
    """Where autocast is off around the graph, it need not be switched off in it."""
    for node in graph.find_nodes(op="call_function", target=AUTOCASTS[0]):
        if node.args[2] is False and all(user.target is AUTOCASTS[1] for user in node.users):
            for user in list(node.users):
                graph.erase_node(user)
            graph.erase_node(node)


def _check(graph: fx.Graph, placeholders: Sequence[fx.Node], arguments: Sequence[Any]) -> None:
    for place, value in zip(placeholders, arguments, strict=True):
        if not isinstance(value, (Tensor, *NUMBERS)):
            kind = type(value).__name__
            raise UnsupportedError(f"the graph takes a {kind} ({place.name}), which is no tensor")
    for node in graph.nodes:
        if node.op == "call_module" or isinstance(node.target, HigherOrderOperator):
            raise UnsupportedError(f"the graph calls other graphs inside of it, by {node.target}")


def _own(graph_module: fx.GraphModule, name: str) -> Tensor:
    value = getattr(graph_module, name)
    if not isinstance(value, Tensor):
        raise UnsupportedError(f"the graph holds a {type(value).__name__}, which is no tensor")
    return value


def _written(
    graph_module: fx.GraphModule,
    graph: fx.Graph,
    arguments: Sequence[Any],
    own: Mapping[str, Tensor],
    records: bool,
) -> tuple[set[int], set[str]]:
    """The places, and names, of tensors that are written into, as fake ones tell by versions."""
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())

    def fake(x: Any) -> Any:
        return mode.from_tensor(x, static_shapes=True) if isinstance(x, Tensor) else x

    fakes, held = [fake(x) for x in arguments], {name: fake(x) for name, x in own.items()}
    before = {key: _look(x) for key, x in (*enumerate(fakes), *held.items())}
    try:
        with mode, torch.set_grad_enabled(records):
            outputs = _Faking(graph_module, graph, held).run(*fakes)
    except Exception as error:
        text = next(iter(str(error).splitlines()), "").strip()
        raise UnsupportedError(
            f"the graph cannot run on tensors without values ({type(error).__name__}: {text[:200]})"
        ) from error
    found = set()
    for key, x in (*enumerate(fakes), *held.items()):
        was, now = before[key], _look(x)
        if was is None or now is None or was == now:
            continue
        if was[1:] != now[1:]:
            raise UnsupportedError("the graph changes the shape of one of its inputs")
        if x.requires_grad and records:
            raise UnsupportedError("the graph writes into a tensor that requires gradients")
        found.add(key)
        home = x.untyped_storage()._cdata
        others = [y for y in outputs if isinstance(y, Tensor) and y is not x]
        if any(y.untyped_storage()._cdata == home for y in others):
            raise UnsupportedError("the graph returns a view of a tensor that it writes into")
    places = {key for key in found if isinstance(key, int)}
    return places, {key for key in found if isinstance(key, str)}


class _Faking(fx.Interpreter):
    """Runs a graph with fake tensors in the place of those that it holds."""

    def __init__(
        self, graph_module: fx.GraphModule, graph: fx.Graph, held: Mapping[str, Any]
    ) -> None:
        super().__init__(graph_module, graph=graph)
        self.held = held

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self.held[target]


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


def _hold(root: nn.Module, name: str, value: Tensor) -> None:
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
    tensors: Iterable[tuple[fx.Node, fx.Node]],
    values: Mapping[fx.Node, Any],
) -> fx.Node | None:
    """A size that comes by itself is read off a tensor that has it, if there is one."""
    symbol = place.meta.get("example_value")
    if not isinstance(symbol, torch.SymInt):
        return None
    for tensor, given in tensors:
        for axis, size in enumerate(_shape(tensor)):
            if isinstance(size, torch.SymInt) and size.node.expr == symbol.node.expr:
                return graph.call_function(torch.ops.aten.sym_size.int, (values[given], axis))
    return None
