"""A Problem becomes a Graph of ATen composites, through torch.export.

In: a Problem. Out: a functionalised Graph in which every node knows its file, line and module, the
leading (batch) dimension of the inputs is symbolic, buffers that forward writes are listed as
mutations, and every argument stands in schema order with its default filled in.
"""

from __future__ import annotations

import builtins
import keyword
import operator
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import sympy
import torch
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree

from kernelwright.effects import undone
from kernelwright.errors import UnsupportedError
from kernelwright.fakes import draws
from kernelwright.frontend.graphs import FRAME, origins
from kernelwright.graph import (
    Contract,
    Dim,
    Graph,
    Guard,
    Node,
    Origin,
    Ref,
    Scalar,
    Shape,
    TensorType,
    as_dim,
    fresh_name,
    identifier,
    without_floors,
)
from kernelwright.places import find_places, is_place, look_of, look_up
from kernelwright.probe import Lies, Sighting, probe
from kernelwright.problem import Problem
from kernelwright.runtime.tensors import is_lazy
from kernelwright.samples import apart_from_one, example_sizes
from kernelwright.schemas import packet, schema_call
from kernelwright.strides import given_rows, placed
from kernelwright.tracing import TORCH, Trace, several, trace

SHORT_NAMES = {
    "_native_batch_norm_legit_functional": "batch_norm",
    "_native_batch_norm_legit_no_training": "batch_norm",
    "_native_batch_norm_legit": "batch_norm",
    "_to_copy": "to",
    "native_dropout": "dropout",
    "linalg_vector_norm": "norm",
}
# Losses by the number of the class: where it stands whether they are reduced.
LOSSES_OF_CLASSES = {"cross_entropy_loss": 3, "nll_loss": 3, "nll_loss_nd": 3, "nll_loss2d": 3}
# Without elements, these give back what they were given, have a smaller result, or refuse what
# batch_norm itself takes.
OTHERWISE_IF_EMPTY = {
    "pixel_unshuffle", "diagonal", "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit.no_stats",
}  # fmt: skip
# What torch.export makes of an operator that draws numbers into the memory of its operand.
IN_ROWS = ("bernoulli.p",)
ITEMS = (torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default)
RESERVED = {*keyword.kwlist, *dir(builtins), "self", "torch", "batch", "Model", "ModelNew"}
SOURCE_KINDS = {
    InputKind.PARAMETER: "parameter",
    InputKind.BUFFER: "buffer",
    InputKind.CONSTANT_TENSOR: "constant",
    InputKind.USER_INPUT: "input",
}


TAKEN = "torch took the batch for a constant while it traced"
MOST_SAMPLES = 64  # that are tried one by one
PARTED = "a size is a part of the batch, which is whole for some batches alone"
HELD = "a product is as wide or as deep as the batch, and is compiled for that"


def capture(problem: Problem) -> Graph:
    """Trace the model in the mode it is in, and again only where one trace does not tell all."""
    with undone():
        return _captured(problem)


def _captured(problem: Problem) -> Graph:
    seen = probe(problem)
    if seen is not None and seen.warms:
        _warm(problem)
        seen = probe(problem)
    lying = None if seen is None else (seen.strides, seen.memory, ())
    asks_mode = seen is None or seen.asks_mode
    problem = replace(problem, recorded=problem.recorded and asks_mode)
    try:
        graph, traced = _first_that_holds(problem, lying)
    except UnsupportedError as error:
        if seen is None or seen.effect is None:
            raise
        raise UnsupportedError(
            f"The forward {seen.effect}, so it has no graph; leave that to whoever calls it."
        ) from error
    graph = replace(graph, mode=_mode(problem, graph, traced))
    more = several(problem)
    if more is not problem and graph.symbols and not _broken(more, graph):
        found = probe(more)
        problem, seen = (more, found) if found is not None else (problem, seen)
    graph = replace(graph, contract=_contract(problem, graph, seen))
    graph = replace(graph, contract=replace(graph.contract, placed=placed(graph)))
    turned = any(n.op in IN_ROWS and not given_rows(graph, n) for n in graph)
    refused = graph.contract.refused or (
        "numbers are drawn in the order of memory" * turned or None
    )
    return _handed_back(replace(graph, contract=replace(graph.contract, refused=refused)))


def _handed_back(graph: Graph) -> Graph:
    """Parts of an operator's result that are the very inputs in eager are inputs here."""
    leaves, spec = pytree.tree_flatten(graph.outputs)
    contract = graph.contract
    if contract.memory is None or not any(contract.given) or len(contract.given) != len(leaves):
        return graph
    for i, leaf in enumerate(leaves):
        home = graph.by_name.get(contract.memory[i] or "")
        if not contract.given[i] or home is None or not isinstance(leaf, Ref):
            continue
        own = graph[leaf.name]
        if own.op == "getitem" and home.op == "input" and home.type == own.type:
            leaves[i] = Ref(home.name)
    graph = replace(graph, outputs=pytree.tree_unflatten(leaves, spec))
    return graph.with_nodes(list(graph.nodes))


def _warm(problem: Problem) -> None:
    """Let the first call do what only a first call does, such as filling a cache."""
    module = problem.module
    kept = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with torch.no_grad():
        module.forward(*problem.inputs, **problem.kwargs)
        for name, buffer in module.named_buffers():
            if name in kept:
                buffer.copy_(kept[name])


def _first_that_holds(problem: Problem, lying: Lies | None) -> tuple[Graph, Trace]:
    """With the batch free where that can be; else for the very sizes of the example.

    `lying` is how the example's results lie.
    """
    why: str | None = None
    for free in (True, False):
        try:
            traced = trace(problem, free, watch=lying is None)
            graph = apart_from_one(problem, _Reader(traced, problem).read(), lying)
        except UnsupportedError as error:
            why = why or str(error)
            continue
        if not _is_of_example(problem, graph):
            why = TAKEN
            continue
        broken = _broken(problem, graph)
        if not broken:
            if free and not graph.symbols and any(x.ndim for x in problem.tensors):
                every = len(problem.held) == len(problem.tensors)
                why = PARTED if every else HELD if problem.held else TAKEN
            return replace(graph, contract=replace(graph.contract, fixed=why)), traced
        why = f"the example has other sizes than {broken[0]}"
    raise UnsupportedError(why or "The forward could not be traced.")


def _is_of_example(problem: Problem, graph: Graph) -> bool:
    """Whether fixed sizes are the example's: two samples may have been traced in place of one."""
    shapes = (node.type.shape for node in graph if node.op == "input")
    return all(
        not isinstance(size, int) or size == own
        for x, shape in zip(problem.tensors, shapes, strict=True)
        for own, size in zip(x.shape, shape, strict=True)
    )


def _broken(problem: Problem, graph: Graph) -> list[Guard]:
    """The guards that the example's sizes do not satisfy."""
    sizes = example_sizes(problem, graph)
    return [guard for guard in graph.contract.guards if not guard.holds(sizes)]


def _mode(problem: Problem, graph: Graph, traced: Trace) -> str:
    """`any` where the other mode gives the same graph, so that .eval() keeps the kernels."""
    own = "train" if problem.training else "eval"
    if problem.flat:
        return own
    if traced.mode_matters is not None:
        return own if traced.mode_matters else "any"
    modes = [(m, m.training) for m in problem.module.modules()]
    try:
        problem.module.train(not problem.training)
        other = _Reader(trace(problem, traced.free), problem).read()
    except UnsupportedError:
        return own
    finally:
        for module, training in modes:
            module.training = training
    same = str(other) == str(graph) and other.contract.guards == graph.contract.guards
    return "any" if same else own


def _contract(problem: Problem, graph: Graph, seen: Sighting | None) -> Contract:
    """What a call does besides computing values, in the names of the graph."""
    if seen is None:
        unknown = frozenset(node.name for node in graph if node.op == "input")
        return replace(graph.contract, follows=unknown, asks_mode=True)
    leaves = pytree.tree_leaves((problem.inputs, dict(problem.kwargs)))
    positions = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
    inputs = dict(zip(positions, (n.name for n in graph if n.op == "input"), strict=True))
    names: dict[int, str] = {i: name for i, name in inputs.items()}
    for name, target in graph.targets.items():
        if graph[name].op == "parameter":
            names[id(problem.module.get_parameter(target))] = name
        elif is_place(target):
            names[id(look_up(problem.module, target))] = name
    buffers = dict(problem.module.named_buffers(remove_duplicate=False))
    homes = {id(buffers[t]): n for n, t in graph.targets.items() if t in buffers} | names
    memory = tuple(None if m is None else homes.get(m, str(m)) for m in seen.memory)

    def named(sets: tuple[frozenset[int], ...] | None) -> tuple[frozenset[str], ...] | None:
        if sets is None:
            return None
        return tuple(frozenset(names[s] for s in of if s in names) for of in sets)

    reason = "the forward asks whether gradients are recorded" if seen.asks else None
    reason = f"the forward {seen.effect}" if seen.effect else reason
    return replace(
        graph.contract,
        reaches=named(seen.reaches),
        recorded=named(seen.recorded),
        otherwise=seen.otherwise,
        strides=seen.strides,
        follows=frozenset(inputs[i] for i in seen.follows),
        copies=frozenset(inputs[i] for i in seen.copies),
        asks_mode=seen.asks_mode,
        repeats=frozenset(inputs[i] for i in seen.repeats),
        given=seen.given,
        memory=memory,
        history=seen.history,
        sizes=tuple(example_sizes(problem, graph).items()),
        device=str(problem.device),
        refused=graph.contract.refused or reason,
    )


def _is_size(expr: sympy.Expr) -> bool:
    """Whether a tensor may have this size, here."""
    plain = without_floors(expr)
    return bool(plain.is_polynomial(*plain.free_symbols))


class _Reader:
    """One walk over an exported program."""

    def __init__(self, traced: Trace, problem: Problem) -> None:
        self.program = traced.program
        self.problem = problem
        self.asked = traced.asked
        self.places = find_places(problem.module)
        self.random = False
        self.refused = traced.unread
        self.symbols: dict[sympy.Symbol, sympy.Symbol] = {}
        self.environments: dict[sympy.Symbol, ShapeEnv] = {}
        self.sizes: dict[str, tuple[str, int]] = {}
        self.values: dict[str, Any] = {}
        self.nodes: list[Node] = []
        self.targets: dict[str, str] = {}
        self.items: dict[sympy.Symbol, Ref] = {}
        self.taken = set(RESERVED)

    def read(self) -> Graph:
        constants: dict[str, torch.Tensor] = {}
        specs = {s.arg.name: s for s in self.program.graph_signature.input_specs}
        for fx_node in self.program.graph.nodes:
            if fx_node.op == "placeholder":
                self._source(fx_node, specs[fx_node.name], constants)
            elif fx_node.op == "call_function":
                self._call(fx_node)
        outputs, mutations = self._results()
        guards = tuple(self._guards())
        self._check_limits(guards)
        contract = Contract(guards, self.random, self.refused)
        graph = Graph(
            tuple(self.nodes),
            outputs,
            mutations,
            targets=self.targets,
            constants=constants,
            symbols=self.sizes,
            contract=contract,
        )
        return graph.with_nodes(list(graph.nodes))

    def _check_limits(self, guards: tuple[Guard, ...]) -> None:
        """torch may find a size to be bounded, and make constants of others, and say no more."""
        for symbol in self.symbols:
            most = self._most(symbol)
            beyond = {str(own): (most or 0) + 1 for own in self.symbols.values()}
            if most is not None and all(guard.holds(beyond) for guard in guards):
                raise UnsupportedError(f"torch traced it for at most {most} samples")

    def _guards(self) -> Iterator[Guard]:
        """What was asked of sizes, what torch found out, and what operators do to special ones."""
        held: dict[str, Guard] = {}
        pairs = [(test, place) for test, place in self.asked if test != sympy.true]
        certain = [place for test, place in self.asked if test == sympy.true]
        for symbol in self.symbols.values() if certain else ():
            # Symbols are positive in the algebra, so that this would go without saying.
            test = sympy.Ne(symbol, 0, evaluate=False)
            held.setdefault(str(test), Guard(test, certain[0]))
        for symbol in list(self.symbols)[:1]:
            environment = self.environments[symbol]
            pairs += [(guard.expr, "") for guard in environment.guards]
            # Sizes of several inputs that turned out to be equal are one symbol by now.
            pairs = [(environment.replace(expr), place) for expr, place in pairs]
        for expr, place in pairs:
            test = expr.subs(self.symbols)
            if test not in (sympy.true, True) and test.free_symbols <= set(self.symbols.values()):
                held.setdefault(str(test), Guard(test, place))
        known = {n.name: n for n in self.nodes}
        for node in self.nodes:
            tests = [sympy.Ne(size, 1) for size in _squeezed(node, known)]
            tests += [sympy.Ne(size, 0, evaluate=False) for size in _not_empty(node, known)]
            for test in tests:
                held.setdefault(str(test), Guard(test, node.origin.place))
        yield from held.values()

    def _source(self, fx_node: Any, spec: Any, constants: dict[str, torch.Tensor]) -> None:
        if isinstance(spec.arg, ConstantArgument):
            self.values[fx_node.name] = spec.arg.value
            return
        if spec.kind not in SOURCE_KINDS:
            raise UnsupportedError(
                f"The model holds a value of kind {spec.kind.name}, not a tensor."
            )
        kind = SOURCE_KINDS[spec.kind]
        tensor, target = fx_node.meta["val"], spec.target
        if kind == "constant":
            kind, target = self._placed(target)
        name = self._fresh(fx_node.name if kind == "input" else spec.target)
        if not isinstance(tensor, torch.Tensor):
            raise UnsupportedError(
                f"The input {fx_node.name} is a {type(tensor).__name__}, not a tensor."
            )
        if _is_lazy(tensor):
            raise UnsupportedError(
                f"The tensor {target or fx_node.name} is conjugated or negated lazily; "
                "store what .resolve_conj().resolve_neg() gives of it."
            )
        if kind == "input":
            self._name_symbols(name, tensor)
        else:
            self.targets[name] = target
        if kind == "constant":
            constants[name] = self.program.constants[spec.target]
        self.values[fx_node.name] = Ref(name)
        self.nodes.append(Node(name, kind, (), self._type(tensor), Origin(kind)))

    def _placed(self, target: str) -> tuple[str, str]:
        """A tensor that hangs on the module or its file is read there at each call."""
        value = self.program.constants[target]
        place = self.places.get(look_of(value)) if value.numel() else None
        return ("constant", target) if place is None else ("buffer", place)

    def _name_symbols(self, name: str, tensor: torch.Tensor) -> None:
        for axis, size in enumerate(tensor.shape):
            if isinstance(size, torch.SymInt):
                symbol = size.node.expr
                if isinstance(symbol, sympy.Symbol) and symbol not in self.symbols:
                    text = "batch" if not self.symbols else f"batch_{len(self.symbols) + 1}"
                    self.symbols[symbol] = sympy.Symbol(text, integer=True, positive=True)
                    self.environments[symbol] = size.node.shape_env
                    self.sizes[text] = (name, axis)

    def _call(self, fx_node: Any) -> None:
        value = fx_node.meta.get("val")
        if value is None:
            return  # an assertion of export's own about types it has just inferred
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool | int | float):
            self.values[fx_node.name] = self._scalar(fx_node, value)
            return
        if fx_node.target is operator.getitem:
            source, index = fx_node.args
            producer = self.values[source.name]
            name = self._fresh(f"{producer.name}_{index}" if index else f"{producer.name}_result")
            origin = self._origin(source, "getitem")
            node = Node(name, "getitem", (producer, index), self._type(value), origin)
        elif isinstance(fx_node.target, torch._ops.OpOverload):
            node = self._aten(fx_node, value)
        else:
            raise UnsupportedError(f"The forward calls {fx_node.target}, which has no ATen form.")
        self.values[fx_node.name] = Ref(node.name)
        self.nodes.append(node)

    def _scalar(self, fx_node: Any, value: Any) -> Any:
        """A number: a size, an expression of sizes, or an element that .item() reads."""
        if isinstance(value, int | float):
            return value
        if isinstance(value, torch.SymBool):
            return None  # export's own assertions alone use it
        if fx_node.target in ITEMS:
            self.items[value.node.expr] = self.values[fx_node.args[0].name]
        return self._number(value)

    def _fresh(self, wish: str) -> str:
        """A Python identifier close to the user's own name for the thing."""
        stem = identifier(wish)
        stem = f"{stem}_value" if stem in RESERVED else stem
        return fresh_name(stem, self.taken)

    def _aten(self, fx_node: Any, value: Any) -> Node:
        target = fx_node.target
        self.random |= draws(fx_node.target, fx_node.args, fx_node.kwargs)
        if target is torch.ops.aten.instance_norm.default and fx_node.args[3] and fx_node.args[5]:
            self.refused = "instance_norm updates running statistics behind the graph"
        name = packet(target)
        op, call, args = schema_call(target, fx_node.args, fx_node.kwargs, self._value)
        if any(_is_lazy(node.meta.get("val")) for node in fx_node.all_input_nodes):
            op = f"lazy::{op}"  # memory does not say what its values are: torch knows
        several = value if isinstance(value, tuple | list) else (value,)
        first = next(v for v in several if v is not None)  # a gradient that nobody asked for is
        origin = self._origin(fx_node, name)
        if name in LOSSES_OF_CLASSES and args[LOSSES_OF_CLASSES[name]] == 0:
            self._check_losses(origin, fx_node, first)
        name = self._fresh(origin.module or name)
        return Node(name, op, args, self._type(first), origin, call, (name,))

    def _check_losses(self, origin: Origin, fx_node: Any, losses: Any) -> None:
        """torch 2.13 gives them no axes where the batch is free, and all that follows is wrong."""
        classes = fx_node.args[1].meta["val"]
        read = any(user.op != "output" for user in fx_node.users)
        if read and losses.ndim == 0 and classes.ndim and classes.dtype is torch.int64:
            raise UnsupportedError(f"torch lost the shape of {origin} while it traced")

    def _value(self, raw: Any) -> Any:
        if isinstance(raw, torch.fx.Node):
            return self.values[raw.name]
        if isinstance(raw, tuple | list):
            return tuple(self._value(v) for v in raw)
        if isinstance(raw, torch.SymInt | torch.SymFloat):
            return self._number(raw)
        return raw

    def _number(self, value: Any) -> Any:
        """A number as an argument; it need not be a size that a tensor may have."""
        expr = value.node.expr.subs(self.symbols)
        sizes = set(self.symbols.values())
        is_size = isinstance(value, torch.SymInt) and expr.free_symbols <= sizes
        if is_size and _is_size(expr):
            return as_dim(expr)
        items = {s: ref for s, ref in self.items.items() if s in expr.free_symbols}
        unknown = expr.free_symbols - sizes - items.keys()
        if unknown:
            raise UnsupportedError(
                f"A number of the forward depends on {min(map(str, unknown))}, a count of elements "
                "that is known only when they are computed; keep such sizes fixed."
            )
        return Scalar(expr, tuple((str(s), ref) for s, ref in items.items()))

    def _dim(self, size: Any) -> Any:
        if isinstance(size, int):
            return size
        expr = size.node.expr.subs(self.symbols)
        if expr.free_symbols - {*self.symbols.values()}:
            raise UnsupportedError(
                "A size of the model depends on the values of tensors, so it has no single graph; "
                "keep that size fixed, or optimize the submodules one by one."
            )
        if not _is_size(expr):
            raise UnsupportedError(
                f"A size of the model is {expr}, which is no polynomial of the batch."
            )
        return self._constant(as_dim(expr))

    def _constant(self, dim: Dim) -> Dim:
        """The size that torch takes for a constant elsewhere: all samples it allows have the same.

        A third of the batch, rounded up, is one for up to three samples.
        """
        if isinstance(dim, int) or len(dim.free_symbols) != 1:
            return dim
        (own,) = dim.free_symbols
        symbol = next(s for s, name in self.symbols.items() if name == own)
        most = self._most(symbol)
        if most is None or most > MOST_SAMPLES:
            return dim
        sizes = {int(dim.subs(own, n)) for n in range(1, most + 1)}
        return sizes.pop() if len(sizes) == 1 else dim

    def _most(self, symbol: sympy.Symbol) -> int | None:
        """So many samples torch has found the program to hold for; None: any number."""
        limits = self.program.range_constraints.get(symbol)
        most = None if limits is None else limits.upper
        return int(most) if isinstance(most, int | sympy.Integer) else None

    def _type(self, tensor: torch.Tensor) -> TensorType:
        shape: Shape = tuple(self._dim(d) for d in tensor.shape)
        return TensorType(shape, tensor.dtype)

    def _origin(self, fx_node: Any, op: str) -> Origin:
        modules = list((fx_node.meta.get("nn_module_stack") or {}).values())
        path = modules[-1][0] if modules else ""
        frames = FRAME.findall(fx_node.meta.get("stack_trace") or "")
        for file, line in reversed(frames):
            if (place := origins.get((file, int(line)))) is not None:
                path, file, number = place
                return Origin(SHORT_NAMES.get(op, op), Path(file).name, number, path)
        own = [f for f in frames if self.problem.path and Path(f[0]) == self.problem.path]
        outside = [f for f in frames if TORCH not in Path(f[0]).parents]
        chosen = (own or outside)[-1:] or [("", "0")]
        return Origin(SHORT_NAMES.get(op, op), Path(chosen[0][0]).name, int(chosen[0][1]), path)

    def _made(self, name: str) -> Any:
        if name not in self.values:  # a graph inside of the graph, which may be under other modes
            raise UnsupportedError("A result is made by operators that are no part of one graph.")
        return self.values[name]

    def _results(self) -> tuple[Any, tuple[tuple[str, str], ...]]:
        outputs: list[Any] = []
        mutations: list[tuple[str, str]] = []
        for spec in self.program.graph_signature.output_specs:
            if spec.kind is OutputKind.BUFFER_MUTATION:
                mutations.append((spec.target, self._made(spec.arg.name).name))
            elif spec.kind is OutputKind.USER_OUTPUT:
                is_constant = isinstance(spec.arg, ConstantArgument)
                outputs.append(spec.arg.value if is_constant else self._made(spec.arg.name))
            elif spec.kind is OutputKind.USER_INPUT_MUTATION:
                self.refused = f"the forward writes into its input {spec.target}"
            else:
                raise UnsupportedError(
                    f"The forward gives a value of kind {spec.kind.name}, not a tensor."
                )
        structure = self.program.call_spec.out_spec
        try:
            return pytree.tree_unflatten(outputs, structure), tuple(mutations)
        except Exception as error:
            raise UnsupportedError(
                "The forward returns an object whose class works on its fields while it is made "
                f"({type(error).__name__}: {error}); return a plain container instead."
            ) from error


def _is_lazy(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and is_lazy(value)


def _squeezed(node: Node, known: dict[str, Node]) -> list[sympy.Expr]:
    """Free sizes that a squeeze would remove if they were one."""
    if not node.op.startswith("squeeze"):
        return []
    shape = known[node.args[0].name].type.shape
    dims = node.args[1] if len(node.args) > 1 else tuple(range(len(shape)))
    listed = dims if isinstance(dims, tuple) else (dims,)
    sizes = [shape[d] for d in listed if shape]
    return [size for size in sizes if not isinstance(size, int)]


def _not_empty(node: Node, known: dict[str, Node]) -> list[sympy.Expr]:
    """Free sizes of an operator that does something else with a tensor without elements."""
    if node.op not in OTHERWISE_IF_EMPTY:
        return []
    return [size for size in known[node.args[0].name].type.shape if not isinstance(size, int)]
