"""The two graphs of a training step, and what the first keeps for the second.

In: a Joint. Out: a Training: the forward with the kept values as further results, and the backward
of cotangents and these. What is kept is a minimal cut through the values of the forward: between
what cannot be computed again for less than it costs to keep (products, convolutions, calls of ATen)
and what the rules of the derivatives read, by the bytes that are moved for it. Pointwise chains and
statistics are computed again, inside of the kernels that read them.

Eager raises an error where a tensor that it keeps is changed before the backward. So of the tensors
that the user has in hand, parameters, inputs and results, only those are kept that eager's own
rules read; of another one a copy is kept, if nothing else will do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import networkx as nx

from kernelwright.errors import UnsupportedError
from kernelwright.graph import (
    SOURCES,
    Call,
    Contract,
    Dim,
    Graph,
    Guard,
    Node,
    Ref,
    as_dim,
    hint,
)
from kernelwright.memory import views
from kernelwright.training.joint import Joint

GIVEN, READ = "given", "read"  # the ends of the network that is cut
COPIED = 3.0  # what a copy costs beside one byte that is there anyhow
MADE = 2.0  # what a value costs that the forward would not have stored


@dataclass(frozen=True)
class Saved:
    """A value of the forward that is kept: how many bytes, for which gradients, and why.

    `copied`: a copy of it, since the caller may change it and eager would not mind.
    """

    value: str
    bytes: Dim
    gradients: tuple[str, ...]
    why: str
    copied: bool = False

    def __str__(self) -> str:
        kept = "a copy is kept" if self.copied else "kept"
        return f"{self.value}: {kept}, {self.bytes} bytes; {self.why}"


@dataclass(frozen=True)
class Training:
    """A forward whose results are those of the model and then the values `made` to be kept.

    `cotangents` and `gradients` are the backward's inputs and results, by results and sources of
    the forward.
    """

    forward: Graph
    backward: Graph
    made: tuple[str, ...]
    saved: tuple[Saved, ...]
    cotangents: Mapping[str, str]
    gradients: Mapping[str, str]
    guards: tuple[Guard, ...]


def partition(
    found: Joint, results: Iterable[str], again: Callable[[str], bool], batch: int
) -> Training:
    """`results` are what the caller gets; `again` says of an operator that it is a map, a view or a
    reduction, which a kernel of the backward can compute once more.
    """
    return _Partition(found, frozenset(results), again, batch).made()


class _Partition:
    def __init__(
        self, found: Joint, results: frozenset[str], again: Callable[[str], bool], batch: int
    ) -> None:
        self.joint, self.graph, self.batch = found, found.graph, batch
        self.results, self.again = results, again
        self.forward = set(found.forward)
        self.behind = self._behind()
        self.demanded = {
            name for node in self.behind for name in self.graph[node].inputs if name in self.forward
        }

    def _behind(self) -> list[str]:
        """The nodes of the backward that some gradient needs, in order."""
        wanted, stack = set[str](), list(self.joint.gradients.values())
        while stack:
            name = stack.pop()
            if name not in wanted and name not in self.forward:
                wanted.add(name)
                stack += self.graph[name].inputs
        return [n.name for n in self.graph if n.name in wanted]

    # ---- what is kept ------------------------------------------------------------------------

    def cut(self) -> set[str]:
        """The values to keep: of all cuts that cost the same, those that come first.

        The network runs backward, since the cut that is found is the one next to its end.
        """
        sure = {name for name in self.demanded if self.is_stored_for_both(name)}
        network = nx.DiGraph()
        network.add_nodes_from((GIVEN, READ))
        stack, seen = list(self.demanded - sure), set[str]()
        for name in stack:
            network.add_edge(READ, (name, 1))
        while stack:
            name = stack.pop()
            if name in seen:
                continue
            seen.add(name)
            cost = 0.0 if name in sure else self.cost(name)
            network.add_edge(
                (name, 1), (name, 0), **({} if cost == math.inf else {"capacity": cost})
            )
            if self.is_computed_again(self.graph[name]):
                for operand in _again(self.graph[name]).inputs:
                    network.add_edge((name, 0), (operand, 1))
                    stack.append(operand)
            else:
                network.add_edge((name, 0), GIVEN)
        if not seen:
            return sure
        try:
            _, (_, near) = nx.minimum_cut(network, READ, GIVEN)
        except nx.NetworkXUnbounded as error:
            raise UnsupportedError(
                "a value of the forward can neither be kept nor made again"
            ) from error
        return sure | {name for name in seen if (name, 0) in near and (name, 1) not in near}

    def cost(self, name: str) -> float:
        node = self.graph[name]
        size = float(self.bytes(node)) + 1.0
        if node.op in SOURCES:
            return 1.0 if self.is_eagers(name) else COPIED * size
        home = self.home(name)
        if home != name and self.graph[home].op in SOURCES:
            return math.inf  # that one is kept
        if self.results & {name, home} and name not in self.demanded:
            return math.inf  # eager lets it be changed
        if self.graph[name].op != "getitem" and self.is_several(name):
            return math.inf
        stored = not self.is_computed_again(node) or self.is_read_by_others(name)
        return size if stored else MADE * size

    def bytes(self, node: Node) -> int:
        return hint(node.type.numel, self.batch) * node.type.dtype.itemsize

    def home(self, name: str) -> str:
        """What a value is a view of."""
        while (
            isinstance(call := self.graph[name].payload, Call)
            and self.graph[name].op not in SOURCES
            and views(call)
            and self.graph[name].inputs
        ):
            name = self.graph[name].inputs[0]
        return name

    def is_several(self, name: str) -> bool:
        return any(self.graph[u].op == "getitem" for u in self.graph.users[name])

    def is_eagers(self, name: str) -> bool:
        """Whether eager keeps this source too: its own rules read it, and no call rewrites it."""
        written = {buffer for buffer, _ in self.graph.mutations}
        return name in self.demanded and self.graph.targets.get(name) not in written

    def is_computed_again(self, node: Node) -> bool:
        if node.op == "getitem":
            return self.again(self.graph[node.inputs[0]].op)
        return node.op not in SOURCES and self.again(node.op)

    def is_stored_for_both(self, name: str) -> bool:
        """Whether the forward stores it anyhow, and the backward would have to do so again."""
        inside = self.graph[name].op not in SOURCES and self.home(name) == name
        return inside and self.is_read_by_others(name) and self.is_read_in_products(name)

    def is_read_by_others(self, name: str) -> bool:
        """Whether the forward stores it anyhow, for a product or a call of ATen."""
        users = (self.graph[u] for u in self.graph.users[name] if u in self.forward)
        return name in self.results or any(
            self.is_read_by_others(u.name) if self._views(u) else not self.is_computed_again(u)
            for u in users
        )

    def is_read_in_products(self, name: str) -> bool:
        """Whether the backward would have to store it, if it computed it again."""
        users = (self.graph[u] for u in self.graph.users[name])
        return any(
            self.is_read_in_products(u.name)
            if self._views(u)
            else u.name not in self.forward and not self.is_computed_again(u)
            for u in users
        )

    def _views(self, node: Node) -> bool:
        return isinstance(node.payload, Call) and views(node.payload)

    # ---- the two graphs ----------------------------------------------------------------------

    def made(self) -> Training:
        kept = self.cut()
        backward = self.backward(kept)
        reach = self.reach(backward)
        read = [n.name for n in backward if n.name in kept and n.op != "constant"]
        saved = tuple(self.saved(name, reach[name]) for name in read)
        made = tuple(n for n in read if self.graph[n].op not in SOURCES and n not in self.results)
        nodes = [n for n in self.graph if n.name in self.forward]
        outputs = (self.graph.outputs[0], tuple(map(Ref, made)))
        forward = replace(self.graph, nodes=tuple(nodes), outputs=outputs).with_nodes(nodes)
        joint = self.joint
        of = (joint.cotangents, joint.gradients, joint.guards)
        return Training(forward, backward, made, saved, *of)

    def saved(self, name: str, gradients: tuple[str, ...]) -> Saved:
        node = self.graph[name]
        count = as_dim(node.type.numel * node.type.dtype.itemsize)
        if node.op in SOURCES:
            copied = not self.is_eagers(name)
            why = "eager reads it too" if not copied else "to compute again what eager keeps"
            return Saved(name, count, gradients, why, copied)
        if name in self.results:
            return Saved(name, count, gradients, "a result, which eager reads too")
        if not self.is_computed_again(node):
            return Saved(
                name, count, gradients, f"what {node.origin.op} gives is not computed twice"
            )
        if self.is_read_by_others(name):
            return Saved(name, count, gradients, "stored in the forward anyhow")
        return Saved(name, count, gradients, "fewer bytes than what it is computed of")

    def backward(self, kept: set[str]) -> Graph:
        nodes: dict[str, Node] = {}

        def bring(name: str) -> None:
            """A value of the forward: handed over, or computed again right here."""
            node = self.graph[name]
            if name in nodes:
                return
            if node.op in SOURCES and node.op != "input":
                nodes[name] = node
            elif name in kept:
                nodes[name] = replace(node, op="input", args=(), payload=None, sources=())
            else:
                node = _again(node)
                for operand in node.inputs:
                    bring(operand)
                nodes[name] = node

        for name in self.behind:
            if self.graph[name].op in SOURCES:
                nodes[name] = self.graph[name]
        for name in self.behind:
            for operand in self.graph[name].inputs:
                if operand in self.forward:
                    bring(operand)
            nodes[name] = self.graph[name]
        first = [n for n in nodes.values() if n.op in SOURCES]
        rest = [n for n in nodes.values() if n.op not in SOURCES]
        targets = {n: t for n, t in self.graph.targets.items() if n in nodes}
        contract = self.graph.contract
        graph = replace(
            self.graph,
            nodes=(*first, *rest),
            outputs=tuple(map(Ref, self.joint.gradients.values())),
            mutations=(),
            counters=(),
            targets=targets,
            symbols=_symbols(self.graph, [*first, *rest]),
            contract=Contract(sizes=contract.sizes, device=contract.device),
        )
        return graph.with_nodes(list(graph.nodes))

    def reach(self, backward: Graph) -> dict[str, tuple[str, ...]]:
        """For each value of the backward, the sources whose gradients it is needed for."""
        return reach(backward, self.joint.gradients)


def _again(node: Node) -> Node:
    """As the backward computes it: a BatchNorm in training has changed its buffers by now."""
    if node.op != "_native_batch_norm_legit_functional":
        return node
    args = (*node.args[:3], *node.args[5:])
    call = Call("torch.ops.aten._native_batch_norm_legit.no_stats", args)
    return replace(node, op="_native_batch_norm_legit.no_stats", args=args, payload=call)


def reach(graph: Graph, gradients: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """For each value of a graph, the sources whose gradients it is needed for."""
    found: dict[str, dict[str, None]] = {n.name: {} for n in graph}
    for source, value in gradients.items():
        found[value][source] = None
    for node in reversed(graph.nodes):
        for operand in node.inputs:
            found[operand] |= found[node.name]
    order = list(gradients)
    return {name: tuple(s for s in order if s in of) for name, of in found.items()}


def _symbols(graph: Graph, nodes: Iterable[Node]) -> dict[str, tuple[str, int]]:
    """Where each free size is read in the backward."""
    found: dict[str, tuple[str, int]] = {}
    every = list(nodes)
    used = {
        str(s)
        for n in every
        for d in n.type.shape
        if not isinstance(d, int)
        for s in d.free_symbols
    }
    for node in every:
        for axis, size in enumerate(node.type.shape if node.op == "input" else ()):
            if str(size) in graph.symbols:
                found.setdefault(str(size), (node.name, axis))
    if used - found.keys():
        raise UnsupportedError("a size of the backward is that of nothing that it reads")
    return {symbol: found[symbol] for symbol in graph.symbols if symbol in found}
