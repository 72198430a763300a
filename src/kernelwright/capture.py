"""A Problem becomes a Graph of ATen composites, through torch.export.

In: a Problem. Out: a functionalised Graph in which every node knows its file, line and module, the
leading (batch) dimension of the inputs is symbolic, buffers that forward writes are listed as
mutations, and every argument stands in schema order with its default filled in.
"""

from __future__ import annotations

import builtins
import inspect
import keyword
import operator
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import sympy
import torch
from torch.export import Dim as ExportDim
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.utils import _pytree as pytree

from kernelwright.errors import UnsupportedError
from kernelwright.graph import (
    Call,
    Graph,
    Node,
    Origin,
    Ref,
    Scalar,
    Shape,
    TensorType,
    as_dim,
    fresh_name,
    without_floors,
)
from kernelwright.problem import Problem

# Overloads that only say how an argument is passed; the others (min.dim) keep their name.
PLAIN_OVERLOADS = {
    "default", "Tensor", "Scalar", "int", "self", "input", "Tensor_Scalar", "Tensor_Tensor",
    "Tensor_Other", "ScalarSelf", "ScalarOther",
}  # fmt: skip
SHORT_NAMES = {
    "_native_batch_norm_legit_functional": "batch_norm",
    "_native_batch_norm_legit_no_training": "batch_norm",
    "native_dropout": "dropout",
    "linalg_vector_norm": "norm",
}
ITEMS = (torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default)
TORCH = Path(torch.__file__).parent
RESERVED = {*keyword.kwlist, *dir(builtins), "self", "torch", "batch", "Model", "ModelNew"}
SOURCE_KINDS = {
    InputKind.PARAMETER: "parameter",
    InputKind.BUFFER: "buffer",
    InputKind.CONSTANT_TENSOR: "constant",
    InputKind.USER_INPUT: "input",
}


def capture(problem: Problem) -> Graph:
    """Trace the model in the mode it is in, and once more to see whether the mode matters."""
    graph = _Reader(_export(problem), problem).read()
    return replace(graph, mode=_mode(problem, graph))


def _mode(problem: Problem, graph: Graph) -> str:
    """`any` where the other mode gives the same graph, so that .eval() keeps the kernels."""
    modes = [(m, m.training) for m in problem.module.modules()]
    own = "train" if problem.training else "eval"
    try:
        problem.module.train(not problem.training)
        other = _Reader(_export(problem), problem).read()
    except UnsupportedError:
        return own
    finally:
        for module, training in modes:
            module.training = training
    return "any" if str(other) == str(graph) else own


def _export(problem: Problem) -> Any:
    inputs = tuple(_traceable(x) for x in problem.inputs)
    failure: Exception | None = None
    for args, shapes in ((inputs, _batched(problem, inputs)), (problem.inputs, None)):
        try:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                program = torch.export.export(problem.module, args, dynamic_shapes=shapes)
                return program.run_decompositions({})
        except Exception as error:
            failure = failure or error
    raise UnsupportedError(_explain(failure)) from failure


def _batched(problem: Problem, inputs: tuple[Any, ...]) -> dict[str, Any]:
    """Ask for a free leading dimension of every tensor, in the shape of forward's own signature."""
    bound = inspect.signature(problem.module.forward).bind(*inputs)
    return {name: pytree.tree_map(_free_batch, value) for name, value in bound.arguments.items()}


def _free_batch(value: Any) -> Any:
    return {0: ExportDim.AUTO} if isinstance(value, torch.Tensor) and value.ndim else None


def _traceable(value: Any) -> Any:
    """A batch of one would be taken for a fixed size; trace with two samples instead."""
    if isinstance(value, torch.Tensor) and value.ndim and value.shape[0] == 1:
        return torch.cat([value, value])
    return value


def _explain(error: Exception | None) -> str:
    text = str(error)
    if "data-dependent" in text.lower() or "GuardOnDataDependent" in type(error).__name__:
        return (
            "The forward branches on the values of tensors, so it has no single graph; "
            "replace the `if` on a tensor by torch.where, or optimize the submodules one by one."
        )
    first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    return (
        f"torch.export could not trace the forward ({type(error).__name__}: {first.strip()[:200]})."
    )


def _is_size(expr: sympy.Expr) -> bool:
    """Whether a tensor may have this size, here."""
    plain = without_floors(expr)
    return bool(plain.is_polynomial(*plain.free_symbols))


class _Reader:
    """One walk over an exported program."""

    def __init__(self, program: Any, problem: Problem) -> None:
        self.program = program
        self.problem = problem
        self.symbols: dict[sympy.Symbol, sympy.Symbol] = {}
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
        graph = Graph(tuple(self.nodes), outputs, mutations, self.targets, constants, self.sizes)
        return graph.with_nodes(list(graph.nodes))

    def _source(self, fx_node: Any, spec: Any, constants: dict[str, torch.Tensor]) -> None:
        if isinstance(spec.arg, ConstantArgument):
            self.values[fx_node.name] = spec.arg.value
            return
        if spec.kind not in SOURCE_KINDS:
            raise UnsupportedError(
                f"The model holds a value of kind {spec.kind.name}, not a tensor."
            )
        kind = SOURCE_KINDS[spec.kind]
        name = self._fresh(fx_node.name if kind == "input" else spec.target)
        tensor = fx_node.meta["val"]
        if not isinstance(tensor, torch.Tensor):
            raise UnsupportedError(
                f"The input {fx_node.name} is a {type(tensor).__name__}, not a tensor."
            )
        if kind == "input":
            self._name_symbols(name, tensor)
        else:
            self.targets[name] = spec.target
        if kind == "constant":
            constants[name] = self.program.constants[spec.target]
        self.values[fx_node.name] = Ref(name)
        self.nodes.append(Node(name, kind, (), self._type(tensor), Origin(kind)))

    def _name_symbols(self, name: str, tensor: torch.Tensor) -> None:
        for axis, size in enumerate(tensor.shape):
            if isinstance(size, torch.SymInt):
                symbol = size.node.expr
                if isinstance(symbol, sympy.Symbol) and symbol not in self.symbols:
                    text = "batch" if not self.symbols else f"batch_{len(self.symbols) + 1}"
                    self.symbols[symbol] = sympy.Symbol(text, integer=True, positive=True)
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
        stem = re.sub(r"\W", "_", wish, flags=re.ASCII).strip("_") or "value"
        if stem[0].isdigit() or stem in RESERVED:
            stem = f"{stem}_value" if stem in RESERVED else f"v{stem}"
        return fresh_name(stem, self.taken)

    def _aten(self, fx_node: Any, value: Any) -> Node:
        target = fx_node.target
        packet, overload = target._schema.name.split("::")[1], target._overloadname
        op = packet if overload in PLAIN_OVERLOADS else f"{packet}.{overload}"
        positional: list[Any] = []
        keywords: list[tuple[str, Any]] = []
        for i, argument in enumerate(target._schema.arguments):
            if argument.name in fx_node.kwargs:
                raw = fx_node.kwargs[argument.name]
            elif not argument.kwarg_only and i < len(fx_node.args):
                raw = fx_node.args[i]
            else:
                raw = argument.default_value
            if argument.kwarg_only:
                keywords.append((argument.name, self._value(raw)))
            else:
                positional.append(self._value(raw))
        call = Call(f"torch.ops.aten.{packet}.{overload}", tuple(positional), tuple(keywords))
        args = (*positional, *(v for _, v in keywords))
        first = value[0] if isinstance(value, tuple | list) else value
        origin = self._origin(fx_node, packet)
        name = self._fresh(origin.module or packet)
        return Node(name, op, args, self._type(first), origin, call, (name,))

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
        return as_dim(expr)

    def _type(self, tensor: torch.Tensor) -> TensorType:
        shape: Shape = tuple(self._dim(d) for d in tensor.shape)
        return TensorType(shape, tensor.dtype)

    def _origin(self, fx_node: Any, op: str) -> Origin:
        modules = list((fx_node.meta.get("nn_module_stack") or {}).values())
        path = modules[-1][0] if modules else ""
        frames = re.findall(r'File "([^"]+)", line (\d+)', fx_node.meta.get("stack_trace") or "")
        own = [f for f in frames if self.problem.path and Path(f[0]) == self.problem.path]
        outside = [f for f in frames if TORCH not in Path(f[0]).parents]
        chosen = (own or outside)[-1:] or [("", "0")]
        return Origin(SHORT_NAMES.get(op, op), Path(chosen[0][0]).name, int(chosen[0][1]), path)

    def _results(self) -> tuple[Any, tuple[tuple[str, str], ...]]:
        outputs: list[Any] = []
        mutations: list[tuple[str, str]] = []
        for spec in self.program.graph_signature.output_specs:
            if spec.kind is OutputKind.BUFFER_MUTATION:
                mutations.append((spec.target, self.values[spec.arg.name].name))
            elif spec.kind is OutputKind.USER_OUTPUT:
                is_constant = isinstance(spec.arg, ConstantArgument)
                outputs.append(spec.arg.value if is_constant else self.values[spec.arg.name])
            else:
                raise UnsupportedError(
                    "The forward writes into one of its inputs; return a new tensor instead."
                )
        structure = self.program.call_spec.out_spec
        return pytree.tree_unflatten(outputs, structure), tuple(mutations)
