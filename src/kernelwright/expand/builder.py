"""The tools of a lowering: each method appends one primitive and returns the value's name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from kernelwright.expr import Expr, call, load
from kernelwright.graph import (
    SOURCES,
    STORED,
    Call,
    Cat,
    Contraction,
    Dim,
    Graph,
    Node,
    Payload,
    Reduction,
    Ref,
    Shape,
    Slide,
    TensorType,
    View,
    Windows,
    as_dim,
    broadcast,
    fresh_name,
    identifier,
    product,
)
from kernelwright.interpret import draws
from kernelwright.memory import views

Lowering = Callable[["Builder", Node], str | None]

NARROW = (torch.float16, torch.bfloat16)
FLOATS = (torch.float32, *NARROW)
UNKNOWN, DECLINED, ROUNDED = "unknown", "declined", "rounded"
# What the forward keeps for these is empty on some devices, or outside of training.
KEEPS_NOTHING = ("log_sigmoid_backward", "native_batch_norm_backward", "batch_norm_backward")
WEIGHTS, INTEGERS = "weights", "integers"


class Builder:
    """Builds the primitive graph node by node, in the order of the captured one."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: list[Node] = [n for n in graph if n.op in SOURCES]
        self.types: dict[str, TensorType] = {n.name: n.type for n in self.nodes}
        self.taken = set(graph.by_name)
        self.results: dict[str, dict[int, str]] = {}
        self.wholes: dict[str, str] = {}
        self.viewed: dict[str, str] = {}
        self.called: dict[str, str] = {}
        self.current = graph.nodes[0]
        self.returned = {base for name in graph.results for base in _bases(graph, name)}
        self.rounds = any(graph[name].type.dtype is torch.float32 for name in graph.results)

    def run(self, lowerings: Mapping[str, Lowering], shapes: Mapping[str, Lowering]) -> Graph:
        """`shapes` are the lowerings that compute nothing, and so may take empty values."""
        for node in self.graph:
            if node.op in SOURCES:
                continue
            self.current = node
            if node.op == "getitem":
                self._getitem(node)
                continue
            lowering = lowerings.get(node.op)
            if lowering is None:
                self.opaque(node, UNKNOWN)
            elif node.op not in shapes and self._rounded(node):
                self.opaque(node, ROUNDED)
            elif (self._empty(node) and node.op not in shapes) or lowering(self, node) is None:
                self.opaque(node, DECLINED)
        return self.graph.with_nodes(self.nodes)

    def _rounded(self, node: Node) -> bool:
        """Whether a narrow value ends up in a float32 result, so that its rounding shows there.

        Kernels keep values in float32 between operators, which a narrow result hides.
        """
        return self.rounds and node.type.dtype in NARROW

    def _empty(self, node: Node) -> bool:
        """Whether there is nothing to compute, or to compute from: no kernel has such loops."""
        read = node.inputs[:2] if node.op in KEEPS_NOTHING else node.inputs
        shapes = [self.types[i].shape for i in read if i in self.types]
        return any(0 in shape for shape in (node.type.shape, *shapes))

    def instead(self, node: Node, lowering: Lowering, label: str) -> str | None:
        """Lower another node in the place of the current one, under a name of its own."""
        own = self.current
        name = fresh_name(f"{own.name}_{label}", self.taken)
        self.current = replace(node, name=name, sources=own.sources or (own.name,))
        value = lowering(self, self.current)
        self.current = own
        return value

    def type(self, value: str) -> TensorType:
        return self.types[value]

    def shape(self, value: str) -> Shape:
        return self.types[value].shape

    def map(
        self, expr: Expr, operands: Sequence[str], type: TensorType, label: str | None = None
    ) -> str:
        """A scalar expression over operands that broadcast to `type`; load(i) is operand i."""
        return self._add(label, "map", tuple(Ref(o) for o in operands), type, expr)

    def apply(self, op: str, *operands: str | float | Expr, label: str | None = None) -> str:
        """One scalar op on values and numbers, with the usual broadcasting."""
        names = [o for o in operands if isinstance(o, str)]
        slots = iter(range(len(names)))
        args = [load(next(slots)) if isinstance(o, str) else o for o in operands]
        shape = broadcast(*(self.shape(n) for n in names))
        assert shape is not None, f"{op} of values that do not broadcast"
        return self.map(call(op, *args), names, TensorType(shape, self.type(names[0]).dtype), label)

    def cast(self, value: str, dtype: torch.dtype) -> str:
        """The same values in another floating type; arithmetic is float32 in any case."""
        if self.type(value).dtype == dtype:
            return value
        return self.map(load(0), [value], TensorType(self.shape(value), dtype), label="cast")

    def reduce(
        self,
        kind: str,
        value: str,
        axes: Sequence[int],
        keepdim: bool,
        label: str | None = None,
        split: bool = True,
    ) -> str:
        """Combine over axes; over everything in two steps, so that no thread block is alone.

        Without `split`, in one: for the results of rows, of which there are not many.
        """
        shape = self.shape(value)
        gone = {a % len(shape) for a in axes}
        long = sorted(a for a in gone if shape[a] != 1)
        if split and len(long) > 1 and all(d == 1 for i, d in enumerate(shape) if i not in gone):
            value = self.reduce(kind, value, long[1:], keepdim=True, label="partial")
            shape = self.shape(value)
        kept: list[Dim] = [
            1 if i in gone else d for i, d in enumerate(shape) if keepdim or i not in gone
        ]
        if all(shape[a] == 1 for a in gone):
            return self.view("reshape", value, tuple(kept), label=label)
        type = TensorType(tuple(kept), self.type(value).dtype)
        reduction = Reduction(kind, tuple(sorted(gone)), keepdim)
        return self._add(label, "reduce", (Ref(value),), type, reduction)

    def view(
        self,
        kind: str,
        value: str,
        shape: Shape,
        dims: Sequence[int] = (),
        label: str | None = None,
    ) -> str:
        """Reshape, permute or expand. A label of None names the result after the captured node."""
        if kind == "reshape" and shape == self.shape(value) and label is not None:
            return value
        type = TensorType(tuple(shape), self.type(value).dtype)
        name = self._add(label, "view", (Ref(value),), type, View(kind, tuple(dims)))
        self.viewed[name] = value
        return name

    def slice(
        self, value: str, axis: int, start: Dim, size: Dim, step: int = 1, label: str | None = None
    ) -> str:
        """`size` places of an axis: every `step`th from `start` on."""
        shape = self.shape(value)
        if start == 0 and size == shape[axis] and (step == 1 or size == 1):
            return self.view("reshape", value, shape, label=label)
        type = TensorType((*shape[:axis], size, *shape[axis + 1 :]), self.type(value).dtype)
        view = View("slice", (axis,), start, step)
        return self._add(label, "view", (Ref(value),), type, view)

    def cat(self, values: Sequence[str], axis: int, label: str | None = None) -> str:
        """Values of one type, one after the other along an axis."""
        if len(values) == 1:
            return self.view("reshape", values[0], self.shape(values[0]), label=label)
        shape, type = self.shape(values[0]), self.type(values[0])
        total = as_dim(sum((self.shape(v)[axis] for v in values), 0))
        joined = TensorType((*shape[:axis], total, *shape[axis + 1 :]), type.dtype)
        return self._add(label, "cat", tuple(Ref(v) for v in values), joined, Cat(axis))

    def window(
        self, value: str, places: Shape, slides: Sequence[Slide], outside: float, label: str
    ) -> str:
        """Windows at so many places along their axes; each is an axis at the end."""
        shape = list(self.shape(value))
        for slide, count in zip(slides, places, strict=True):
            shape[slide.axis] = count
        type = TensorType((*shape, *(s.size for s in slides)), self.type(value).dtype)
        payload = Windows(tuple(slides), outside)
        return self._add(label, "window", (Ref(value),), type, payload)

    def contract(
        self,
        payload: Contraction,
        operands: Sequence[str],
        label: str | None = None,
        shape: Shape | None = None,
    ) -> str:
        """A contraction of the captured node's type, or of another shape."""
        args = tuple(Ref(o) for o in operands)
        type = self.current.type
        type = type if shape is None else TensorType(shape, type.dtype)
        if label is None:
            return self._add(None, "contract", args, type, payload)
        # A law may have merged a second bias into it; the product is still the user's module's.
        owner = self.current.origin.module or self.current.name
        name = fresh_name(identifier(f"{owner}_{label}"), self.taken)
        return self._append(name, "contract", args, type, payload)

    def opaque(self, node: Node, why: str) -> str:
        """A call that stays with ATen; `why` stands as its only argument, for the planner."""
        assert isinstance(node.payload, Call)
        known = self._known(node)
        if known is not None:
            at, twin = next((i, n) for i, n in enumerate(self.nodes) if n.name == known)
            self.nodes[at] = replace(twin, sources=(*twin.sources, node.name))
            return self.view("reshape", known, node.type.shape)
        return self._add(None, "opaque", (why,), node.type, node.payload)

    def draw(self, call: Call, type: TensorType, label: str) -> str:
        """A call that draws random numbers for the captured node, and is no other's."""
        return self._add(label, "opaque", (), type, call)

    def ask(self, call: Call, type: TensorType, label: str, why: str) -> str:
        """A call of ATen's that is a part of the captured node; `why` is for the planner."""
        return self._add(label, "opaque", (why,), type, call)

    def _known(self, node: Node) -> str | None:
        """An earlier call that gave the same value, if neither is returned."""
        assert isinstance(node.payload, Call)
        several = any(self.graph[user].op == "getitem" for user in self.graph.users[node.name])
        if several or node.name in self.graph.results or draws(node.payload):
            return None
        known = self.called.setdefault(f"{node.payload} {node.type}", node.name)
        return known if known != node.name else None

    def copied(self, value: str) -> str | None:
        """The value itself under the captured node's name; a copy where the caller gets it.

        Or gets a view of it: with one sample the views that stand for a repeat are no copy. None
        where a copy is due that no kernel can make.
        """
        if self.current.name not in self.returned:
            return self.view("reshape", value, self.current.type.shape)
        type = self.current.type
        return self.map(load(0), [value], type) if type.dtype in STORED else None

    def several(self, **by_index: str) -> str:
        """The captured node has several results: `several(r0=..., r3=...)` names those we build."""
        self.results[self.current.name] = {int(k[1:]): v for k, v in by_index.items()}
        return self.current.name

    def constant(self, value: str) -> torch.Tensor | None:
        """The tensor that a value is, or is a view of, if the forward itself created it."""
        while value in self.viewed:
            value = self.viewed[value]
        return self.graph.constants.get(value)

    def floating(self, *values: str) -> bool:
        return all(self.type(v).dtype in FLOATS for v in values)

    def _getitem(self, node: Node) -> None:
        source, index = node.args
        known = self.results.get(source.name, {})
        if index in known:
            value, dtype = known[index], node.type.dtype
            value = self.cast(value, dtype) if self.floating(value) and dtype in FLOATS else value
            self.view("reshape", value, node.type.shape)
            return
        if source.name in self.results and source.name not in self.wholes:
            # Not among those that were built, one of which may have the operator's own name.
            producer, free = self.graph[source.name], source.name not in self.types
            whole = source.name if free else fresh_name(f"{source.name}_whole", self.taken)
            self._append(whole, "opaque", (), producer.type, producer.payload)
            self.wholes[source.name] = whole
        made = Ref(self.wholes.get(source.name, source.name))
        self._add(None, "opaque", (), node.type, Call("getitem", (made, index)))

    def _add(
        self, label: str | None, op: str, args: tuple[Any, ...], type: TensorType, payload: Payload
    ) -> str:
        own = self.current.name
        name = own if label is None else fresh_name(f"{own}_{label}", self.taken)
        return self._append(name, op, args, type, payload)

    def _append(
        self, name: str, op: str, args: tuple[Any, ...], type: TensorType, payload: Payload
    ) -> str:
        node = self.current
        self.types[name] = type
        sources = node.sources or (node.name,)
        self.nodes.append(Node(name, op, args, type, node.origin, payload, sources))
        return name


def _bases(graph: Graph, name: str) -> Iterator[str]:
    """A captured value, what eager's is a view of, and so on."""
    found: str | None = name
    while found is not None:
        yield found
        node = graph[found]
        viewing = node.op == "getitem" or (isinstance(node.payload, Call) and views(node.payload))
        found = node.inputs[0] if viewing and node.inputs else None


def widens(old: torch.dtype, new: torch.dtype) -> bool:
    """Whether every number of one floating type is one of the other."""
    return old == new or (new is torch.float32 and old in FLOATS)


def count(shape: Shape, axes: Sequence[int]) -> Dim:
    return product([shape[a] for a in axes])
