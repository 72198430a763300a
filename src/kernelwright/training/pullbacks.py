"""The derivative of one ATen call as ATen calls, by torch's own rules for it.

In: a call, the types of its operands, whose gradients are wanted and which results have one. Out: a
Pullback, the small graph that autograd runs for that. It is traced on fake tensors whose free sizes
are symbols, so it holds for every batch; calls that are alike are traced once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
from torch import Tensor, fx
from torch._decomp import get_decompositions
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from kernelwright.errors import UnsupportedError
from kernelwright.graph import (
    Call,
    Graph,
    Guard,
    Ref,
    Scalar,
    Shape,
    TensorType,
    as_dim,
    map_refs,
)
from kernelwright.interpret import resolve

Flowing = tuple[tuple[int, TensorType], ...]  # results, by their places

aten = torch.ops.aten
# What changes nothing: autograd notes it where it keeps a result.
IDLE = (aten.detach.default, aten.alias.default)
# Taken apart by torch's definition of it wherever `expand` has none of its own.
DEFINED = (
    "native_layer_norm", "native_layer_norm_backward", "native_group_norm",
    "native_group_norm_backward", "native_batch_norm_backward", "_fused_rms_norm",
    "_fused_rms_norm_backward", "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit.no_stats", "_softmax", "_log_softmax", "_softmax_backward_data",
    "_log_softmax_backward_data", "gelu_backward", "silu_backward", "mish_backward",
    "hardtanh_backward", "leaky_relu_backward", "elu_backward", "softplus_backward",
    "hardswish_backward", "hardsigmoid_backward", "sigmoid_backward", "tanh_backward",
    "threshold_backward", "native_dropout_backward", "log_sigmoid_backward", "mse_loss_backward",
    "smooth_l1_loss_backward", "huber_loss_backward", "hardshrink_backward",
    "softshrink_backward", "glu_backward", "_prelu_kernel_backward", "_prelu_kernel",
)  # fmt: skip
# A call of these has its statistics as results of their own, and rewrites buffers besides.
ALWAYS = ("_native_batch_norm_legit_functional", "_native_batch_norm_legit")
STRANGE = 10007  # a multiple of the example's batch that no other size is likely to be
MOST_TRIED = 64


@dataclass(frozen=True)
class Pullback:
    """A traced derivative.

    `operands` and `cotangents` are its placeholders, `results` what the call itself gives, and
    `gradients` has for every operand the node of its gradient, None where it has none.
    """

    operands: tuple[fx.Node, ...]
    cotangents: tuple[fx.Node, ...]
    results: tuple[fx.Node | None, ...]
    gradients: tuple[fx.Node | None, ...]


class Sizes:
    """The free sizes of a graph as torch's symbols, and back."""

    def __init__(self, graph: Graph) -> None:
        self.shapes = ShapeEnv()
        self.mode = FakeTensorMode(shape_env=self.shapes, allow_non_fake_inputs=True)
        self.device = graph.contract.device
        self.known = _unlikely(graph)
        self.theirs: dict[sympy.Symbol, sympy.Expr] = {}
        for name, size in self.known.items():
            own = sympy.Symbol(name, integer=True, positive=True)
            source = ConstantSource(name)
            self.theirs[own] = self.shapes.create_symbol(size, source, DimDynamic.DYNAMIC)
        self.ours = {there: own for own, there in self.theirs.items()}

    def given(self, dim: Any) -> Any:
        """A size or a number as torch has it in a trace."""
        if isinstance(dim, Scalar):
            raise UnsupportedError("a number of the forward is computed from its sizes")
        if not isinstance(dim, sympy.Expr):
            return dim
        hint = int(dim.subs({s: self.known[str(s)] for s in dim.free_symbols}))
        return self.shapes.create_symintnode(dim.xreplace(self.theirs), hint=hint)

    def tensor(self, type: TensorType) -> Tensor:
        with self.mode:
            shape = [self.given(d) for d in type.shape]
            return torch.empty(shape, dtype=type.dtype, device=self.device)

    def number(self, value: Any) -> Any:
        """A number of a trace, in our symbols."""
        if not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return value
        expr = self.shapes.replace(value.node.expr).xreplace(self.ours)
        if isinstance(value, torch.SymInt):
            plain = as_dim(expr)
            if isinstance(plain, int) or plain.is_polynomial(*plain.free_symbols):
                return plain
        return Scalar(expr)

    def type(self, value: Tensor) -> TensorType:
        shape: Shape = tuple(self.number(d) for d in value.shape)
        if any(isinstance(d, Scalar) for d in shape):
            raise UnsupportedError("a size of the backward is no polynomial of the batch")
        return TensorType(shape, value.dtype)

    def guards(self, start: int) -> tuple[Guard, ...]:
        """What traces took for granted of the sizes since, if any sizes could break it."""
        if self.shapes.replacements:
            raise UnsupportedError("the backward holds for the sizes of the example alone")
        tests = dict.fromkeys(g.expr.xreplace(self.ours) for g in self.shapes.guards[start:])
        found = [Guard(test) for test in tests if test is not sympy.true]
        return tuple(g for g in found if not g.holds_from(dict.fromkeys(self.known, 1)))


def _unlikely(graph: Graph) -> dict[str, int]:
    """Sizes that are like no other of the graph, and that satisfy what its trace asked of sizes."""
    example = dict(graph.contract.sizes)
    for factor in range(STRANGE, STRANGE + MOST_TRIED):
        sizes = {
            name: max(size, 2) * (factor + i) for i, (name, size) in enumerate(example.items())
        }
        if all(guard.holds(sizes) for guard in graph.contract.guards):
            return sizes
    return {name: max(size, 2) for name, size in example.items()}


class Pullbacks:
    """The derivatives of the calls of one graph. `opens` says which operators `expand` knows."""

    def __init__(self, graph: Graph, opens: Callable[[str], bool]) -> None:
        self.graph, self.sizes = graph, Sizes(graph)
        self.known: dict[Hashable, Pullback] = {}
        self.asked: dict[Guard, None] = {}
        self.table = _table(opens)

    def of(self, call: Call, wanted: Sequence[bool], flowing: Flowing) -> Pullback:
        """`wanted` is by the places of operands, `flowing` has the results that have a gradient."""
        types: list[TensorType] = []

        def slot(ref: Ref) -> Any:
            types.append(self.graph[ref.name].type)
            return Ref(str(len(types) - 1))

        args, kwargs = map_refs((call.args, call.kwargs), slot)
        key = (call.target, repr((args, kwargs)), tuple(types), tuple(wanted), flowing)
        if key not in self.known:
            before = len(self.sizes.shapes.guards)
            operands = [self.sizes.tensor(t) for t in types]
            for x, asks in zip(operands, wanted, strict=True):
                x.requires_grad_(asks)
            self.known[key] = self._traced(
                replace(call, args=args, kwargs=kwargs), operands, flowing
            )
            if "conv" not in call.target:  # these ask which library would be quick
                self.asked |= dict.fromkeys(self.sizes.guards(before))
        return self.known[key]

    def _traced(self, call: Call, operands: list[Tensor], flowing: Flowing) -> Pullback:
        op = resolve(call.target)
        sizes = dict.fromkeys(_sizes((call.args, call.kwargs)))
        numbers = [self.sizes.given(size) for size in sizes]

        def derive(operands: list[Tensor], numbers: list[Any], cotangents: list[Tensor]) -> Any:
            known = dict(zip(sizes, numbers, strict=True))

            def look(value: Any) -> Any:
                if isinstance(value, Ref):
                    return operands[int(value.name)]
                if isinstance(value, tuple | list):
                    return [look(v) for v in value]
                return known[value] if isinstance(value, sympy.Expr) else value

            made = op(*map(look, call.args), **{name: look(v) for name, v in call.kwargs})
            results = list(made) if isinstance(made, tuple | list) else [made]
            roots = [(results[i], c) for (i, _), c in zip(flowing, cotangents, strict=True)]
            return results, _gradients([(r, c) for r, c in roots if r.requires_grad], operands)

        cotangents = [self.sizes.tensor(type) for _, type in flowing]
        with torch.enable_grad(), self.sizes.mode, enable_python_dispatcher():
            traced = make_fx(derive, decomposition_table=self.table)(operands, numbers, cotangents)
        return _read(traced.graph, len(operands), len(cotangents))


def _gradients(roots: list[tuple[Tensor, Tensor]], operands: list[Tensor]) -> list[Tensor | None]:
    """By autograd; None for operands that ask for none, or that nothing flows to."""
    asked = [x for x in operands if x.requires_grad]
    if not roots or not asked:
        return [None for _ in operands]
    results, cotangents = zip(*roots, strict=True)
    found = iter(torch.autograd.grad(results, asked, cotangents, allow_unused=True))
    return [next(found) if x.requires_grad else None for x in operands]


def _sizes(value: Any) -> Iterator[sympy.Expr]:
    """The free sizes among arguments."""
    if isinstance(value, Scalar):
        raise UnsupportedError("a number of the forward is known only at a call")
    if isinstance(value, sympy.Expr):
        yield value
    for inner in value if isinstance(value, tuple | list) else ():
        yield from _sizes(inner)


def _read(graph: fx.Graph, operands: int, cotangents: int) -> Pullback:
    _without_writing(graph)
    placeholders = graph.find_nodes(op="placeholder")
    (output,) = graph.find_nodes(op="output")
    made = output.args[0]
    results, gradients = made[: len(made) - operands], made[len(made) - operands :]
    if graph.find_nodes(op="get_attr"):
        raise UnsupportedError("its derivative holds a constant tensor")
    return Pullback(
        tuple(placeholders[:operands]),
        tuple(placeholders[len(placeholders) - cotangents :]),
        tuple(_kept(r) for r in results),
        tuple(_kept(g) for g in gradients),
    )


def _without_writing(graph: fx.Graph) -> None:
    """Operators that write into what was made for them give a value of their own instead."""
    for node in list(graph.nodes):
        schema = getattr(node.target, "_schema", None)
        if node.op != "call_function" or schema is None or not schema.is_mutable:
            continue
        written, twin = node.args[0], _twin(node.target)
        made = isinstance(written, fx.Node) and getattr(written.target, "_schema", None)
        if twin is None or not made or any(a.alias_info for a in made.returns):
            raise UnsupportedError(f"its derivative writes in place, with {schema.name}")
        with graph.inserting_before(node):
            new = graph.call_function(twin, node.args, node.kwargs)
        new.meta = node.meta
        for user in [user for user in written.users if user > node]:
            user.replace_input_with(written, new)
        node.replace_all_uses_with(new)
        graph.erase_node(node)


def _twin(op: Any) -> Any:
    """The operator that computes what this one writes, from the same arguments."""
    name = op._schema.name.split("::")[1]
    packet = getattr(aten, name[:-1], None) if name.endswith("_") else None
    found = getattr(packet, op._overloadname or "default", None)
    if found is None or found._schema.is_mutable:
        return None
    ours, theirs = ([a.name for a in o._schema.arguments] for o in (found, op))
    return found if ours == theirs else None


def _kept(node: Any) -> fx.Node | None:
    return awake(node) if isinstance(node, fx.Node) else None


def awake(node: fx.Node) -> fx.Node:
    """The node, or what it is the same as."""
    while node.target in IDLE:
        node = node.args[0]  # type: ignore[assignment]
    return node


def _table(opens: Callable[[str], bool]) -> dict[Any, Any]:
    """Operators by torch's definition of them in others."""
    wanted = []
    for name in DEFINED:
        packet, _, overload = name.partition(".")
        found = getattr(aten, packet, None)
        if found is not None and (packet in ALWAYS or not opens(name)):
            wanted += [getattr(found, overload)] if overload else [found]
    return dict(get_decompositions(wanted))


def needed(found: Sequence[fx.Node], known: Callable[[fx.Node], bool]) -> list[fx.Node]:
    """The nodes that these are computed by, operands first; `known` ones are not looked into."""
    order: dict[fx.Node, None] = {}

    def visit(node: fx.Node) -> None:
        node = awake(node)
        if node in order or known(node):
            return
        for operand in node.all_input_nodes:
            visit(operand)
        order[node] = None

    for node in found:
        visit(node)
    return list(order)
