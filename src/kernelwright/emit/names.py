"""Values of a graph as Python: variables, attributes, views, sizes, literals.

The names are the user's own wherever they can be, and out of the way of each other where they
cannot.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import sympy
import torch

from kernelwright.emit import values
from kernelwright.emit.arguments import GLOBALS, Arguments, Leaf
from kernelwright.emit.values import python
from kernelwright.graph import (
    SOURCES,
    Dim,
    Node,
    Ref,
    Scalar,
    View,
    as_dim,
)
from kernelwright.handed import detached, handed_back
from kernelwright.lower.steps import DECISIONS, WORKSPACE
from kernelwright.places import is_place
from kernelwright.plan.model import Plan
from kernelwright.problem import Problem
from kernelwright.scalars import as_python

OWN = (
    *("memo", "state", "cause", "module", "otherwise", "device", "kept", "how"),
    *("place", "unknown", "tensor", "dtype", "shape", "wanted"),
    *("panel", "samples", "slices", "part", "start", "stop", "outputs"),
)
LOCALS = (*OWN, *DECISIONS, *WORKSPACE)


class Names:
    """How the values of one plan are called in the emitted functions.

    `known` are texts for values in the function that is being printed, `slots` those of a routine;
    `placed_on` is the text of the device while steps are printed.
    """

    def __init__(
        self, problem: Problem, plan: Plan, device: str, names: Mapping[type, str]
    ) -> None:
        self.problem = problem
        self.names = names
        self.device = device
        self.plan = plan
        self.graph = plan.graph
        self.arguments = Arguments(problem, names)
        self.leaves = self._bind()
        self.inputs = {name: leaf.name for name, leaf in self.leaves.items()}
        self.local = self._locals()
        self.first = next(n.name for n in self.graph if n.op == "input")
        self.known: dict[str, str] = {}
        self.slots: Mapping[str, str] = {}
        self.placed_on = ""
        self.results = handed_back(self.graph)

    def _locals(self) -> dict[str, str]:
        """The names of emitted locals, out of the way of forward's own parameters."""
        taken = set(self.arguments.taken)
        chosen: dict[str, str] = {}
        for word in (*LOCALS, *self.graph.symbols):
            chosen[word] = word
            while chosen[word] in taken:
                chosen[word] += "_"
        return chosen

    def _bind(self) -> dict[str, Leaf]:
        """Graph input -> the leaf of the arguments that it is."""
        tensors = [n.name for n in self.graph if n.op == "input"]
        places: dict[int, list[int]] = {}
        for place, tensor in enumerate(self.problem.tensors):
            places.setdefault(id(tensor), []).append(place)
        # Of one tensor in two places either may be the first: outside() sees to it that it is one.
        order = {places[id(leaf.value)].pop(0): leaf for leaf in self.arguments.tensors}
        return dict(zip(tensors, (order[place] for place in sorted(order)), strict=True))

    @cached_property
    def repeated(self) -> list[tuple[Leaf, Leaf]]:
        """Arguments that are one tensor in the example, each after the first with that one.

        A trace reads them all from one of them, and a forward may have asked whether they are one.
        """
        first: dict[int, Leaf] = {}
        pairs = [(leaf, first.setdefault(id(leaf.value), leaf)) for leaf in self.leaves.values()]
        return [(leaf, other) for leaf, other in pairs if leaf is not other]

    @cached_property
    def detached(self) -> frozenset[str]:
        """Outputs that no gradient flows through, although their type would allow it."""
        return detached(self.graph)

    @property
    def example(self) -> dict[str, int]:
        """The free sizes in the example."""
        leaves = {name: leaf.value for name, leaf in self.leaves.items()}
        return {s: leaves[n].shape[i] for s, (n, i) in self.graph.symbols.items()}

    @property
    def returned(self) -> list[str]:
        """The values that the steps give."""
        return [result.name for result in self.results]

    def device_of(self) -> str:
        """Where a call runs: in functions of tensors, in forward itself, in steps."""
        first = self.known.get(self.first, self.inputs[self.first])
        return self.placed_on or f"{first}.device"

    @contextmanager
    def within(self, slots: Mapping[str, str]) -> Iterator[None]:
        """Steps are printed in here, those of a routine with its own names for values."""
        before = self.slots, self.placed_on
        on_cpu = self.device == "cpu"
        self.slots, self.placed_on = slots, '"cpu"' if on_cpu else self.local["device"]
        yield
        self.slots, self.placed_on = before

    # ---- names and values ------------------------------------------------------------------

    def value(self, name: str) -> str:
        """A Python expression for a graph value: a variable, an attribute, or a view of one."""
        if name not in self.graph.by_name:
            return self.variable(name)
        node = self.graph[name]
        if name in self.slots:
            return self.slots[name]
        if name in self.known:
            return self.known[name]
        if any(name == r.name for r in self.results) and self.known:
            return self.variable(name)
        if node.op == "input":
            return self.inputs[name]
        if node.op == "constant":
            on_cpu = self.device == "cpu"
            return f"_{name}" if on_cpu else f"placed(_{name}, {self.device_of()})"
        if node.op != "view":
            return self.variable(name)
        view, inner = node.payload, self.value(node.inputs[0])
        assert isinstance(view, View)
        if node.type.shape == self.graph[node.inputs[0]].type.shape and view.kind != "permute":
            return inner
        if view.kind == "permute":
            return permuted(inner, view.dims)
        if view.kind == "slice":
            return f"{inner}[{self.sliced(node, view)}]"
        method = "expand" if view.kind == "expand" else "reshape"
        return f"{inner}.{method}({self.tuple_of(node.type.shape)})"

    def sliced(self, node: Node, view: View) -> str:
        """What stands between the brackets of a slice: `:, 3:9:2`."""
        axis = view.dims[0]
        count, size = node.type.shape[axis], self.graph[node.inputs[0]].type.shape[axis]
        stop = as_dim(view.start + view.step * (count - 1) + 1) if count != 0 else view.start
        places = [
            self.size(view.start) if view.start != 0 else "",
            self.size(stop) if stop != size else "",
        ]
        if view.step != 1:
            places.append(str(view.step))
        return ", ".join([*(":" for _ in range(axis)), ":".join(places)])

    def variable(self, name: str) -> str:
        """A buffer is called after the captured value that is a plain view of it, if any."""
        if name in self.slots:
            return self.slots[name]
        users = [self.graph[u] for u in self.graph.users.get(name, ())]
        same = [u for u in users if u.op == "view" and u.sources == self.graph[name].sources]
        wish = same[0].name if len(same) == 1 else name
        if name in self.graph.by_name and self.graph[name].op in SOURCES:
            wish = name
        return f"{wish}_" if wish in self.taken else wish

    @cached_property
    def taken(self) -> frozenset[str]:
        """Names that no value of the graph may have."""
        return frozenset({"self", *GLOBALS, *self.arguments.taken, *self.local.values()})

    def every(self) -> set[str]:
        """All names that stand in fused(), or that a constant of the file has."""
        values = {self.variable(name) for name in self.graph.by_name}
        return {
            *self.taken,
            *self.inputs.values(),
            *values,
            *(f"_{n}" for n in self.graph.constants),
        }

    def attribute(self, target: str, owner: str | None = None) -> str:
        """`module.net[0].weight`: the user's own way to write where a tensor lives."""
        text = owner or self.local["module"]
        if is_place(target):
            return target.replace("{}", text)
        *parents, last = target.split(".")
        for part in parents:
            plain = part.isidentifier() and not keyword.iskeyword(part)
            text = f"{text}.{part}" if plain else f"{text}._modules[{python(part)}]"
        plain = last.isidentifier() and not keyword.iskeyword(last)
        return f"{text}.{last}" if plain else f"getattr({text}, {python(last)})"

    def symbol(self, symbol: str, inline: bool = False) -> str:
        """Where a free size is read: in a function of tensors, or `inline` in outside()."""
        name, axis = self.graph.symbols[symbol]
        return f"{self.leaves[name].place if inline else self.inputs[name]}.shape[{axis}]"

    def size(self, dim: Dim, inline: bool = False) -> str:
        """A size as Python: over the emitted locals, or `inline` over the inputs themselves."""
        return self._inline(str(dim)) if inline else self._renamed(str(dim), self.local)

    def _inline(self, text: str) -> str:
        return self._renamed(text, {s: self.symbol(s, inline=True) for s in self.graph.symbols})

    def _renamed(self, text: str, names: Mapping[str, str]) -> str:
        for symbol in self.graph.symbols:
            text = re.sub(rf"\b{symbol}\b", names[symbol], text)
        return text

    def tuple_of(self, shape: tuple[Dim, ...]) -> str:
        inside = ", ".join(self.size(d) for d in shape)
        return f"({inside},)" if len(shape) == 1 else f"({inside})"

    def literal(self, value: Any) -> str:
        """A Python literal of nested arguments with Refs and sizes."""
        return values.rebuild(value, self._known, self.names)

    def _known(self, value: Any) -> str | None:
        if isinstance(value, Ref):
            return self.value(value.name)
        if isinstance(value, Scalar):
            items = {symbol: f"{self.value(ref.name)}.item()" for symbol, ref in value.items}
            return as_python(value.expr, {s: self.local[s] for s in self.graph.symbols} | items)
        if isinstance(value, torch.device):
            return self.device_of()
        return self.size(value) if isinstance(value, sympy.Expr) else None


def permuted(text: str, dims: Sequence[int]) -> str:
    return f"{text}.permute({', '.join(map(str, dims)) or '()'})"
