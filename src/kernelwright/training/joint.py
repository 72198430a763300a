"""A captured graph with its derivative behind it: one graph of ATen calls, forward and backward.

In: a captured Graph. Out: a Joint. Composites are differentiated as they stand, by torch's own
rules, so whatever torch can differentiate is here, and a law that removes work from the forward
never changes what is differentiated. What a rule computes again of its operands, as a norm's
statistics, is a call of the backward too; what nobody may compute again, as what a dropout draws,
takes the place of the forward's call.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx

from kernelwright.errors import UnsupportedError
from kernelwright.graph import (
    SOURCES,
    Call,
    Graph,
    Guard,
    Node,
    Origin,
    Ref,
    fresh_name,
    identifier,
    is_differentiable,
)
from kernelwright.interpret import draws
from kernelwright.schemas import packet, schema_call, written
from kernelwright.training.pullbacks import Pullback, Pullbacks, awake, needed

# What is not run twice beside what draws numbers: it costs as much as all around it.
COSTLY = ("_scaled_dot_product", "_flash_attention", "_efficient_attention", "lstm", "gru", "rnn")
# What rules ask for on tensors as they lie, and is the same on values: these lie row by row, and
# are real.
SAME = {
    torch.ops.aten.view.default: torch.ops.aten.reshape.default,
    torch.ops.aten._unsafe_view.default: torch.ops.aten.reshape.default,
    torch.ops.aten.sgn.default: torch.ops.aten.sign.default,
}
# Where operators have a weight and a bias that their statistics do not depend on.
STATISTICS = {"native_group_norm": (1, 2), "native_layer_norm": (2, 3)}


@dataclass(frozen=True)
class Joint:
    """Forward and backward as one graph.

    `forward` are the names of what no cotangent is needed for, but for what only the backward asks
    for; `cotangents` gives for each differentiable result of the forward the input that its
    gradient is; `gradients` gives for sources the values that theirs are. `guards` are what the
    backward asks of sizes beyond the forward's contract.
    """

    graph: Graph
    forward: tuple[str, ...]
    cotangents: Mapping[str, str]
    gradients: Mapping[str, str]
    guards: tuple[Guard, ...]


def joint(
    captured: Graph, results: Iterable[str], sources: Iterable[str], opens: Callable[[str], bool]
) -> Joint:
    """The gradients of sources, for cotangents of results, both by name in the captured graph."""
    return _Differentiator(captured, Pullbacks(captured, opens)).run(
        list(results), frozenset(sources)
    )


class _Differentiator:
    def __init__(self, captured: Graph, pullbacks: Pullbacks) -> None:
        self.captured, self.pullbacks = captured, pullbacks
        self.forward = {n.name: [n] for n in captured}
        self.backward: list[Node] = []
        self.types = {n.name: n.type for n in captured}
        self.taken = {n.name for n in captured}
        self.terms: dict[str, list[str]] = defaultdict(list)

    def run(self, results: list[str], sources: frozenset[str]) -> Joint:
        flows = self._flows(sources)
        cotangents = {}
        for name in results:
            if name in flows:
                given = self._fresh(f"{name}_gradient")
                cotangents[name] = given
                node = Node(given, "input", (), self.types[name], Origin("gradient"))
                self._append(self.backward, node)
                self.terms[name].append(given)
        for node in reversed(self.captured.nodes):
            if node.op not in SOURCES and node.op != "getitem" and node.name in flows:
                self._through(node, flows)
        gradients = {name: self._total(self.captured[name]) for name in sorted(sources)}
        found = {name: value for name, value in gradients.items() if value is not None}
        forward = [node for nodes in self.forward.values() for node in nodes]
        graph = replace(
            self.captured,
            nodes=(*forward, *self.backward),
            outputs=(self.captured.outputs, tuple(map(Ref, found.values()))),
        )
        names = tuple(n.name for n in forward)
        return Joint(graph, names, cotangents, found, tuple(self.pullbacks.asked))

    def _flows(self, sources: frozenset[str]) -> set[str]:
        """Values that the gradient of some source may come through."""
        found = set(sources)
        for node in self.captured:
            several = node.op != "getitem" and self._parts(node)
            if is_differentiable(node.type.dtype) or several:
                found |= {node.name} if found.intersection(node.inputs) else set()
        return found

    def _parts(self, node: Node) -> list[Node]:
        users = [self.captured[user] for user in self.captured.users[node.name]]
        return [user for user in users if user.op == "getitem"]

    # ---- one call ----------------------------------------------------------------------------

    def _through(self, node: Node, flows: set[str]) -> None:
        """The terms that a call adds to the gradients of its operands."""
        parts = {part.args[1]: part for part in self._parts(node)} or {0: node}
        totals = {i: self._total(part) for i, part in sorted(parts.items())}
        flowing = {i: total for i, total in totals.items() if total is not None}
        if not flowing:
            return
        call = node.payload
        assert isinstance(call, Call)
        wanted = [
            name in flows and is_differentiable(self.types[name].dtype) for name in node.inputs
        ]
        types = tuple((i, self.types[total]) for i, total in flowing.items())
        pullback = self.pullbacks.of(call, wanted, types)
        self._inline(node, parts, pullback, list(flowing.values()))

    def _inline(
        self, node: Node, parts: Mapping[int, Node], pullback: Pullback, cotangents: list[str]
    ) -> None:
        """The calls of a pullback in the graph, and its results as terms."""
        names = dict(zip(pullback.operands, node.inputs, strict=True))
        wanted = [g for g in pullback.gradients if g is not None]
        twice = self._not_again(wanted, pullback, parts)
        if twice:
            self._replace(node, parts, pullback, names, twice)
        for i, part in parts.items():
            result = pullback.results[i]
            if result is not None:
                names[result] = part.name
        names |= dict(zip(pullback.cotangents, cotangents, strict=True))
        for step in needed(wanted, names.__contains__):
            made = self._called(step, names, node)
            if made is not None:
                self._append(self.backward, made)
                names[step] = made.name
        for name, gradient in zip(node.inputs, pullback.gradients, strict=True):
            if gradient is not None:
                self.terms[name].append(names[gradient])

    def _not_again(
        self, wanted: list[fx.Node], pullback: Pullback, parts: Mapping[int, Node]
    ) -> list[fx.Node]:
        """What the rule takes of the forward and must not do once more: the whole way there."""
        results = {r for i in parts if (r := pullback.results[i]) is not None}
        ends = {*pullback.operands, *pullback.cotangents}
        plain = needed(wanted, lambda n: n in ends or n in results)
        of_cotangents = set(pullback.cotangents)
        for step in plain:
            if of_cotangents.intersection(map(awake, step.all_input_nodes)):
                of_cotangents.add(step)
        again = [step for step in plain if step not in of_cotangents and _is_costly(step)]
        if not again:
            return []
        kept = [s for s in plain if s.target is operator.getitem and s not in of_cotangents]
        return needed([*again, *kept, *results], ends.__contains__)

    def _replace(
        self,
        node: Node,
        parts: Mapping[int, Node],
        pullback: Pullback,
        names: dict[fx.Node, str],
        steps: list[fx.Node],
    ) -> None:
        """The forward's call gives way to those of the rule, whose other results are kept."""
        results = {
            r: parts[i] for i, r in enumerate(pullback.results) if r is not None and i in parts
        }
        made: list[Node] = []
        for step in steps:
            found = self._called(step, names, node)
            if found is None:
                continue
            if step in results:
                part = results[step]
                self.forward[part.name] = []
                found = replace(found, name=part.name, sources=part.sources or (part.name,))
                if found.op != "getitem" and isinstance(found.payload, Call):
                    found = replace(found, sources=(part.name,))
            else:
                found = replace(found, sources=())
            names[step] = found.name
            self._append(made, found)
        self.forward[node.name] = made

    def _called(self, step: fx.Node, names: Mapping[fx.Node, str], node: Node) -> Node | None:
        """A traced call as a node; None for a number, which whoever reads it has."""
        value = step.meta.get("val")
        if not isinstance(value, Tensor | tuple | list):
            return None

        def look(raw: Any) -> Any:
            if isinstance(raw, fx.Node):
                inner = awake(raw)
                if inner in names:
                    return Ref(names[inner])
                return self.pullbacks.sizes.number(inner.meta["val"])
            if isinstance(raw, tuple | list):
                return tuple(look(v) for v in raw)
            return self.pullbacks.sizes.number(raw)

        first = value if isinstance(value, Tensor) else next(v for v in value if v is not None)
        type = self.pullbacks.sizes.type(first)
        if step.target is operator.getitem:
            source, index = look(step.args[0]), step.args[1]
            assert isinstance(index, int)
            name = self._fresh(f"{source.name}_{index}")
            origin = replace(node.origin, op="getitem")
            return Node(name, "getitem", (source, index), type, origin)
        target: Any = step.target
        if not isinstance(target, torch._ops.OpOverload):
            raise UnsupportedError(f"its derivative calls {target}, which has no ATen form")
        target = SAME.get(target, target)
        op, call, args = schema_call(target, step.args, step.kwargs, look)
        if op in STATISTICS:  # are asked for alone: the result is the forward's
            given = [None if i in STATISTICS[op] else arg for i, arg in enumerate(call.args)]
            call = replace(call, args=tuple(given))
            args = (*given, *(value for _, value in call.kwargs))
        if op == "scalar_tensor":  # a number, as whoever computes with it knows it
            filled = Call("torch.ops.aten.full.default", ((), *call.args), call.kwargs)
            op, call, args = "full", filled, ((), *args)
        origin = replace(node.origin, op=packet(target))
        name = self._fresh(f"{node.name}_{packet(target).strip('_')}")
        return Node(name, op, args, type, origin, call, (name,))

    # ---- sums ----------------------------------------------------------------------------------

    def _total(self, node: Node) -> str | None:
        """The gradient of a value: the sum of its terms, in the order in which they came."""
        terms = self.terms.pop(node.name, [])
        if not terms:
            return None
        total = terms[0]
        for term in terms[1:]:
            name = self._fresh(f"{node.name}_gradient_sum")
            args = (Ref(total), Ref(term), 1)
            call = Call("torch.ops.aten.add.Tensor", args[:2], (("alpha", 1),))
            origin = replace(node.origin, op="add")
            self._append(self.backward, Node(name, "add", args, node.type, origin, call, (name,)))
            total = name
        return total

    def _append(self, nodes: list[Node], node: Node) -> None:
        self.types[node.name] = node.type
        nodes.append(node)

    def _fresh(self, wish: str) -> str:
        return fresh_name(identifier(wish), self.taken)


def _is_costly(step: fx.Node) -> bool:
    if not isinstance(step.target, torch._ops.OpOverload):
        return False
    return draws(Call(written(step.target), ())) or packet(step.target).startswith(COSTLY)
