"""Laws as data: a Rule's pattern is found in a captured Graph, and its replacement put there.

In: a Graph and Rules. Out: the Graph at a fixed point, and one Rewrite for every law that fired.
The one idea: a law is a value. Its name is the law as text, its pattern and its replacement are
what that text says, and `when` answers with the reason why the law does not hold, so what was left
alone can be explained (`refusals`) as well as what was changed.

A pattern is nested Pats, one for each node, over leaves: Var (any value), Param (a value of the
module), Num (a number), Opt (a value or None), Arg (anything), `...` (all that follows), or a plain
number, bool or None that must be equal. A name that occurs twice must mean the same value twice.

The root is the node that the outermost Pat matched; the other matched nodes are interior. An
interior node dies when its last user does. If somebody else reads it too, a rule would add work
(both forms are then computed) or memory traffic (both inputs are then kept), so by default a rule
asks that interior nodes have no other user. A rule that only replaces its root by a value that
exists already sets `single_use=False`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from types import EllipsisType
from typing import Any

import torch

from kernelwright.graph import (
    SOURCES,
    Call,
    Graph,
    Node,
    Origin,
    Ref,
    Shape,
    TensorType,
    map_refs,
    refs,
)
from kernelwright.interpret import resolve


@dataclass(frozen=True)
class Var:
    """Any tensor value."""

    name: str

    def accepts(self, graph: Graph, value: Any) -> bool:
        return isinstance(value, Ref)


@dataclass(frozen=True)
class Param:
    """A parameter or buffer of the module."""

    name: str

    def accepts(self, graph: Graph, value: Any) -> bool:
        return isinstance(value, Ref) and graph[value.name].op in ("parameter", "buffer")


@dataclass(frozen=True)
class Num:
    """A number that is written in the program (a symbolic size is none)."""

    name: str

    def accepts(self, graph: Graph, value: Any) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True)
class Opt:
    """A tensor value, or None."""

    name: str

    def accepts(self, graph: Graph, value: Any) -> bool:
        return value is None or isinstance(value, Ref)


@dataclass(frozen=True)
class Arg:
    """Anything at all; without a name it is not even remembered."""

    name: str = ""

    def accepts(self, graph: Graph, value: Any) -> bool:
        return True


@dataclass(frozen=True)
class OneOf:
    """The first, else the second, ... of several patterns."""

    choices: tuple[Pattern, ...]


class Pat:
    """A node with this op, or one of these, and arguments that match in schema order.

    `commutes` also tries the first two arguments the other way round; a node that fails `where` is
    not even a near miss.
    """

    def __init__(
        self,
        op: str | Sequence[str],
        *args: Pattern | EllipsisType,
        name: str = "",
        commutes: bool = False,
        where: Callable[[Graph, Node], bool] | None = None,
    ) -> None:
        self.ops = (op,) if isinstance(op, str) else tuple(op)
        self.open = bool(args) and args[-1] is ...
        self.args = tuple(a for a in args if a is not ...)
        self.name = name
        self.commutes = commutes
        self.where = where

    def orders(self) -> Iterator[tuple[Pattern, ...]]:
        yield self.args
        if self.commutes:
            yield (self.args[1], self.args[0], *self.args[2:])

    def fits(self, graph: Graph, node: Node) -> bool:
        spare = len(node.args) - len(self.args)
        counts = spare == 0 or (self.open and spare > 0)
        return node.op in self.ops and counts and (not self.where or self.where(graph, node))


Leaf = Var | Param | Num | Opt | Arg
Pattern = Pat | Leaf | OneOf | int | float | bool | None
ANY = Arg()


@dataclass(frozen=True)
class Match:
    """What a pattern's names stand for, and the nodes that it matched, the root first."""

    graph: Graph
    bound: dict[str, Any] = field(default_factory=dict)
    nodes: tuple[Node, ...] = ()

    @property
    def root(self) -> Node:
        return self.nodes[0]

    def __getitem__(self, name: str) -> Any:
        return self.bound[name]

    def node(self, name: str) -> Node:
        return self.graph[self.bound[name].name]

    def type(self, name: str) -> TensorType:
        return self.node(name).type

    def number(self, name: str) -> float:
        value = self.bound[name]
        assert isinstance(value, int | float), f"{name} is {value!r}, not a number"
        return value

    def bind(self, name: str, value: Any) -> Match | None:
        """This match with one more name, or None if the name means something else already."""
        if not name:
            return self
        if name in self.bound:
            return self if self.bound[name] == value else None
        return replace(self, bound={**self.bound, name: value})


def matches(graph: Graph, pattern: Pat, root: Node) -> Iterator[Match]:
    """Every way in which the pattern matches at this node."""
    return _match_node(pattern, root, Match(graph))


def _match_node(pattern: Pat, node: Node, match: Match) -> Iterator[Match]:
    if not pattern.fits(match.graph, node):
        return
    start = replace(match, nodes=(*match.nodes, node)).bind(pattern.name, Ref(node.name))
    if start is not None:
        for order in pattern.orders():
            yield from _match_all(order, node.args, start)


def _match_all(
    patterns: tuple[Pattern, ...], values: tuple[Any, ...], match: Match
) -> Iterator[Match]:
    if not patterns:
        yield match
        return
    for found in _match_value(patterns[0], values[0], match):
        yield from _match_all(patterns[1:], values[1:], found)


def _match_value(pattern: Pattern, value: Any, match: Match) -> Iterator[Match]:
    if isinstance(pattern, Pat):
        if isinstance(value, Ref):
            yield from _match_node(pattern, match.graph[value.name], match)
    elif isinstance(pattern, OneOf):
        for choice in pattern.choices:
            yield from _match_value(choice, value, match)
    elif isinstance(pattern, Var | Param | Num | Opt | Arg):
        if pattern.accepts(match.graph, value) and (found := match.bind(pattern.name, value)):
            yield found
    elif _same_literal(pattern, value):
        yield match


def _same_literal(pattern: float | None, value: Any) -> bool:
    """1 is 1.0, but neither is True: a flag and a factor are never taken for each other."""
    if pattern is None or isinstance(pattern, bool):
        return value is pattern
    return isinstance(value, int | float) and not isinstance(value, bool) and value == pattern


class Exactness(Enum):
    """How far the two sides of a law agree in floating point."""

    EXACT = "same bits, the sign of a zero aside"
    REASSOCIATES = "equal in real arithmetic"
    GUARDED = "holds under a condition that is checked at run time"

    def __str__(self) -> str:
        return self.name.lower()


Condition = Callable[[Match], str | None]


def always(match: Match) -> str | None:
    return None


def all_of(*conditions: Condition) -> Condition:
    """The first reason that any of the conditions gives."""
    return lambda match: next((why for c in conditions if (why := c(match))), None)


@dataclass(frozen=True)
class Rule:
    """A law. `name` is the law itself; `when` says why it does not hold here, if so."""

    name: str
    pattern: Pat
    build: Callable[[Match, Builder], Ref]
    exactness: Exactness
    when: Condition = always
    single_use: bool = True

    def __str__(self) -> str:
        return f"{self.name} ({self.exactness})"


@dataclass(frozen=True)
class Rewrite:
    """A law that fired: at which operator, and which captured nodes are gone because of it."""

    rule: str
    exactness: Exactness
    where: Origin
    consumed: tuple[str, ...]

    def __str__(self) -> str:
        others = f", together with {', '.join(self.consumed)}" if self.consumed else ""
        return f"{self.rule} ({self.exactness}): {self.where}{others}"


@dataclass(frozen=True)
class Refusal:
    """A law that would have fired, had it not been for `why`."""

    rule: str
    where: Origin
    why: str

    def __str__(self) -> str:
        return f"not {self.rule}: {self.where}, because {self.why}"


class Builder:
    """Makes the nodes of a replacement: fresh names, an origin, and all sources that matched."""

    def __init__(self, match: Match) -> None:
        self.match = match
        self.made: dict[str, Node] = {}

    def type(self, value: Ref) -> TensorType:
        """The type of a value of the graph or of a node made here."""
        made = self.made.get(value.name)
        return made.type if made is not None else self.match.graph[value.name].type

    def node(self, op: str, args: tuple[Any, ...], type: TensorType) -> Ref:
        """A new ATen node; `op` and `args` are as in a captured graph."""
        return self._add(op, args, type, aten_call(op, args), origin_of(self.match))

    def like(
        self,
        node: Node,
        *args: Any,
        shape: Shape | None = None,
        dtype: torch.dtype | None = None,
        own: bool = False,
    ) -> Ref:
        """`node` again, at its own place in the program, with other leading arguments.

        With `own` it carries out what the node did and nothing else of what matched.
        """
        payload = node.payload
        assert isinstance(payload, Call), f"{node.name} is no ATen call"
        full = (*args, *node.args[len(args) :])
        type = TensorType(node.type.shape if shape is None else shape, dtype or node.type.dtype)
        made = self._add(node.op, full, type, _with_arguments(payload, full), node.origin)
        if own:
            self.made[made.name] = replace(self.made[made.name], sources=node.sources)
        return made

    def first_of(self, several: Ref) -> Ref:
        """The first result of an operator that has several; its node has the type of the first."""
        return self._add("getitem", (several, 0), self.type(several), None, origin_of(self.match))

    def _add(
        self, op: str, args: tuple[Any, ...], type: TensorType, call: Call | None, origin: Origin
    ) -> Ref:
        taken = self.match.graph.by_name.keys() | self.made.keys()
        base = f"{self.match.root.name}_{op.partition('.')[0]}"
        names = (base if i == 0 else f"{base}_{i}" for i in range(len(taken) + 1))
        name = next(n for n in names if n not in taken)
        sources = dict.fromkeys(s for n in reversed(self.match.nodes) for s in n.sources)
        self.made[name] = Node(name, op, args, type, origin, call, tuple(sources))
        return Ref(name)


# The overload of ops whose short name does not say it; `default` otherwise.
OVERLOADS = {
    "add": "Tensor", "sub": "Tensor", "mul": "Tensor", "div": "Tensor",
    "where": "self", "slice": "Tensor", "transpose": "int", "eq": "Scalar",
}  # fmt: skip


def aten_call(op: str, args: tuple[Any, ...]) -> Call:
    """The call that `op(*args)` stands for, arguments in schema order, keyword-only ones last."""
    packet, _, overload = op.partition(".")
    target = f"torch.ops.aten.{packet}.{overload or OVERLOADS.get(packet, 'default')}"
    keywords = [a.name for a in resolve(target)._schema.arguments if a.kwarg_only]
    count = len(args) - len(keywords)
    return Call(target, args[:count], tuple(zip(keywords, args[count:], strict=True)))


def _with_arguments(call: Call, args: tuple[Any, ...]) -> Call:
    count = len(call.args)
    keywords = (k for k, _ in call.kwargs)
    return Call(call.target, args[:count], tuple(zip(keywords, args[count:], strict=True)))


def origin_of(match: Match) -> Origin:
    """The root's place in the program; taking one result of several has the place of the op."""
    root = match.root
    return match.nodes[1].origin if root.op == "getitem" and match.nodes[1:] else root.origin


def rewrite(graph: Graph, rules: Sequence[Rule]) -> tuple[Graph, tuple[Rewrite, ...]]:
    """Apply the rules until none fires: first node first, and at a node the first rule first.

    After a law, only nodes are tried again for which a pattern could now find something else.
    """
    captured = graph.by_name.keys()
    log: list[Rewrite] = []
    limit = 64 + 8 * len(graph.nodes)
    by_op, levels = _by_op(rules), max((_levels(r.pattern) for r in rules), default=0)
    waiting = set(captured)
    while (step := _first_step(graph, by_op, waiting)) is not None:
        rule, match, after = step
        gone = (n.name for n in graph if n.name in captured and n.name not in after.by_name)
        log.append(Rewrite(rule.name, rule.exactness, origin_of(match), tuple(gone)))
        waiting |= _neighbourhood(graph, after, levels)
        graph = after
        last = ", ".join(dict.fromkeys(r.rule for r in log[-8:]))
        assert len(log) <= limit, f"these laws undo each other without end: {last}"
    return graph, tuple(log)


def refusals(graph: Graph, rules: Sequence[Rule]) -> tuple[Refusal, ...]:
    """Every near miss: a pattern that matched where its rule did not apply, with the reason."""
    by_op = _by_op(rules)
    found = (
        Refusal(rule.name, origin_of(match), result)
        for node in graph
        for rule, match, result in _attempts(graph, by_op, node)
        if isinstance(result, str)
    )
    return tuple(dict.fromkeys(found))


ByOp = Mapping[str, Sequence[Rule]]


def _by_op(rules: Sequence[Rule]) -> ByOp:
    """The rules by the operator at the root of their pattern."""
    found: dict[str, list[Rule]] = {}
    for rule in rules:
        for op in dict.fromkeys(rule.pattern.ops):
            found.setdefault(op, []).append(rule)
    return found


def _levels(pattern: Pattern) -> int:
    """How far below its root a pattern, or a condition on what it matched, looks."""
    if isinstance(pattern, OneOf):
        return max(_levels(choice) for choice in pattern.choices)
    if isinstance(pattern, Pat):
        return 1 + max((_levels(a) for a in pattern.args), default=0)
    return 0


def _first_step(graph: Graph, by_op: ByOp, waiting: set[str]) -> tuple[Rule, Match, Graph] | None:
    """The first law that fires at a node that waits; those before it wait no longer."""
    for node in graph:
        if node.name not in waiting:
            continue
        held = False
        for rule, match, result in _attempts(graph, by_op, node):
            if isinstance(result, Graph):
                return rule, match, result
            held |= result.startswith(FRESH)  # which a law anywhere may change
        if not held:
            waiting.discard(node.name)
    return None


def _neighbourhood(before: Graph, after: Graph, levels: int) -> set[str]:
    """The nodes from which at most so many levels lead down to something that has changed."""
    changed = {
        n.name
        for n in after
        if before.by_name.get(n.name) is not n or before.users[n.name] != after.users[n.name]
    }
    changed |= {n for n in {*before.results} ^ {*after.results} if n in after.by_name}
    found = set(changed)
    for _ in range(levels):
        changed = {user for name in changed for user in after.users[name]} - found
        found |= changed
    return found


def _attempts(graph: Graph, by_op: ByOp, node: Node) -> Iterator[tuple[Rule, Match, Graph | str]]:
    """What each rule comes to at each of its matches at a node."""
    for rule in by_op.get(node.op, ()):
        for match in matches(graph, rule.pattern, node):
            yield rule, match, _attempt(rule, match)


def _attempt(rule: Rule, match: Match) -> Graph | str:
    """The graph after the rule, or why there is none."""
    why = rule.when(match) or (_other_user(match) if rule.single_use else None)
    if why is not None:
        return why
    after = _replace_root(match, rule)
    return _new_alias(match.graph, after) or after


def _other_user(match: Match) -> str | None:
    matched = {n.name for n in match.nodes}
    for node in match.nodes[1:]:
        others = [u for u in match.graph.users[node.name] if u not in matched]
        if others:
            return f"{node.name} is also used by {', '.join(others)}"
        if node.name in match.graph.results:
            return f"{node.name} is also a result of the model"
    return None


def _replace_root(match: Match, rule: Rule) -> Graph:
    graph, root, builder = match.graph, match.root, Builder(match)
    result = rule.build(match, builder)
    nodes = {n.name: n for n in graph}
    if result.name in builder.made:
        new = builder.made.pop(result.name)
        assert new.type == root.type, f"{rule.name} changes {root.type} to {new.type}"
        nodes.update(builder.made)
        nodes[root.name] = replace(new, name=root.name)
        return graph.with_nodes(list(nodes.values()))
    found = graph[result.name].type
    assert found == root.type, f"{rule.name} changes {root.type} to {found}"

    def change(ref: Ref) -> Ref:
        return result if ref.name == root.name else ref

    after = replace(
        graph,
        outputs=map_refs(graph.outputs, change),
        mutations=tuple((b, change(Ref(v)).name) for b, v in graph.mutations),
    )
    return after.with_nodes([_repoint(n, change) for n in graph if n.name != root.name])


def _repoint(node: Node, change: Callable[[Ref], Ref]) -> Node:
    if all(change(Ref(name)).name == name for name in node.inputs):
        return node
    payload = node.payload
    if isinstance(payload, Call):
        args, kwargs = map_refs(payload.args, change), map_refs(payload.kwargs, change)
        payload = Call(payload.target, args, kwargs)
    return replace(node, args=map_refs(node.args, change), payload=payload)


FRESH = "the caller must get a fresh tensor"


def _new_alias(before: Graph, after: Graph) -> str | None:
    """Why the caller would not get a fresh tensor, where the original gives one."""
    for alias in sorted(_aliases(after) - _aliases(before)):
        return f"{FRESH}, but would get {alias[1]} itself"
    return None


def _aliases(graph: Graph) -> set[tuple[int, str]]:
    """(position of a result, name of a source or earlier result that shares its memory)."""
    names = [*refs(graph.outputs), *(value for _, value in graph.mutations)]
    first: dict[str, str] = {}
    found: set[tuple[int, str]] = set()
    for position, name in enumerate(names):
        base = _storage(graph, name)
        if graph[base].op in SOURCES:
            found.add((position, base))
        elif base in first:
            found.add((position, first[base]))
        first.setdefault(base, f"result {position}")
    return found


def _storage(graph: Graph, name: str) -> str:
    """The value whose memory this one may share: itself, or what it is a view of."""
    node = graph[name]
    while node.inputs and _may_alias(node):
        node = graph[node.inputs[0]]
    return node.name


def _may_alias(node: Node) -> bool:
    if node.op in ("getitem", "dropout"):
        return True
    if not isinstance(node.payload, Call):
        return False
    returns = resolve(node.payload.target)._schema.returns
    return any(r.alias_info is not None for r in returns)
