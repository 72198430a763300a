"""Values in channels_last: what the library's convolutions read and write, and all in between.

In: the primitives, and the convolutions that the library runs in channels_last. Out: the same
primitives, in which such a convolution takes its operand with the channels last and leaves its
result so, and what each of these was called. A value whose channels are last is one of another
shape, `x_last`: N x H x W x C; `x` is a permutation of it, which moves nothing. Maps, cats, slices
and pools of such values have their channels last as well, so a chain of convolutions stays in that
order from end to end; what is given or computed otherwise is stored in it once, by the kernel that
makes it if there is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace

from kernelwright.expr import Expr, index, load, substitute
from kernelwright.graph import (
    SOURCES,
    Call,
    Cat,
    Contraction,
    Graph,
    Node,
    Reduction,
    Ref,
    Shape,
    TensorType,
    View,
    Windows,
    fresh_name,
    map_refs,
)
from kernelwright.plan.model import CALLS

RANKS = (4, 5)
CHANNEL = 1


def with_channels_last(
    graph: Graph,
    chosen: Mapping[str, int],
    weights: bool = True,
    back: Set[str] = frozenset(),
) -> tuple[Graph, dict[str, str]]:
    """The graph with these convolutions, and what hangs on them, in channels_last.

    `chosen` says for each from how many samples on. Their `weights` may stay as they are. The
    values `back` are stored with their channels first. The convolutions' names in the new graph
    come with those that they had.
    """
    turning = _Turning(graph, chosen, weights, back)
    return (turning.run() if chosen else graph), {turning.last[name]: name for name in chosen}


def last_order(rank: int) -> tuple[int, ...]:
    """The axes of a batch of channels and space with the channels behind: 0, 2, 3, 1."""
    return (0, *range(2, rank), CHANNEL)


def first_order(rank: int) -> tuple[int, ...]:
    """The way back: 0, 3, 1, 2."""
    return (0, rank - 1, *range(1, rank - 1))


class _Turning:
    """`last` gives for a value with its channels first the same one with its channels last.

    Those that `lie` so have become views of that; others are in memory both ways.
    """

    def __init__(
        self, graph: Graph, chosen: Mapping[str, int], weights: bool, back: Set[str]
    ) -> None:
        self.graph = graph
        self.back = back
        self.weights = weights
        self.chosen = chosen
        self.wanted = {graph[name].inputs[0] for name in chosen}
        self.nodes: dict[str, Node] = {}
        self.last: dict[str, str] = {}
        self.lie: set[str] = set()
        self.firsts: dict[str, str] = {}
        self.windows: dict[str, str] = {}
        self.views: dict[tuple[str, Shape], str] = {}
        self.taken = set(graph.by_name)

    def run(self) -> Graph:
        for node in self.graph:
            if node.name in self.chosen:
                self.convolution(node)
            elif node.op == "map" and self.follows(node):
                self.map(node)
            elif node.op == "cat" and self.follows(node):
                self.cat(node)
            elif node.op == "opaque" and self.is_pool(node):
                self.pool(node)
            elif node.op == "reduce" and node.inputs[0] in self.windows and self.pools(node):
                self.reduce(node)
            elif node.op in CALLS and not _is_product(node):
                self.nodes[node.name] = self.as_eager(node)
                if node.name in self.wanted:
                    self.store(node)
            elif node.op == "view" and node.inputs[0] in self.last and self.viewed(node):
                self.nodes[node.name] = node
            else:
                self.nodes[node.name] = node
                if node.op == "window" and node.inputs[0] in self.last:
                    self.window(node)
                if node.name in self.wanted and node.op not in SOURCES:
                    self.store(node)
        return self.graph.with_nodes([*self.nodes.values()])

    # ---- what has its channels last ----------------------------------------------------------

    def follows(self, node: Node) -> bool:
        """Whether a map or a cat is better computed with its channels last.

        What is returned lies as eager's; of the operands of its size most must lie so.
        """
        if len(node.type.shape) not in RANKS or node.name in self.graph.results:
            return False
        if node.name in self.back:
            return False
        if node.name in self.wanted:
            return True
        if isinstance(node.payload, Cat):
            whole = list(node.inputs)
        else:
            whole = [i for i in node.inputs if self.graph[i].type.shape == node.type.shape]
        turned = sum(i in self.last for i in whole)
        return turned > 0 and 2 * turned >= len(whole)

    def is_pool(self, node: Node) -> bool:
        """Whether ATen's pool is one of a value in channels_last, which it then leaves so too."""
        call = node.payload
        pool = isinstance(call, Call) and "_pool" in call.target and len(node.inputs) == 1
        tuples = any(_is_part(self.graph[u]) for u in self.graph.users[node.name])
        return pool and not tuples and node.inputs[0] in self.lie

    def pools(self, node: Node) -> bool:
        """Whether a reduction of windows is one over all that a window has at its place."""
        reduction, windows = node.payload, self.graph[node.inputs[0]].payload
        assert isinstance(reduction, Reduction)
        assert isinstance(windows, Windows)
        rank = len(self.graph[node.inputs[0]].type.shape)
        behind = tuple(range(rank - len(windows.slides), rank))
        shown = node.name in self.graph.results
        return not shown and not reduction.keepdim and sorted(reduction.axes) == list(behind)

    def viewed(self, node: Node) -> bool:
        """Whether a view, a slice or one that changes nothing, has its channels last as well."""
        view, below = node.payload, self.last[node.inputs[0]]
        assert isinstance(view, View)
        if view.kind == "slice":
            order = last_order(len(node.type.shape))
            taken = replace(view, dims=(order.index(view.dims[0]),))
            made = replace(node, args=(Ref(below),), type=_last(node), payload=taken)
            self.last[node.name] = self.add(f"{node.name}_last", made)
        elif view.kind != "permute" and node.type == self.graph[node.inputs[0]].type:
            self.last[node.name] = below
        if node.name in self.last and node.inputs[0] in self.lie:
            self.lie.add(node.name)
        return node.name in self.last

    # ---- nodes -------------------------------------------------------------------------------

    def convolution(self, node: Node) -> None:
        payload, (x, w) = node.payload, node.inputs[:2]
        assert isinstance(payload, Contraction)
        order = last_order(len(node.type.shape))
        given = {x: self.given(x, node)}
        if self.weights and not _lies_either_way(self.graph[w].type.shape):
            given[w] = self.given(w, node)

        def in_order(ref: Ref) -> Ref:
            return Ref(given[ref.name]) if ref.name in given else ref

        def turned(call: Call) -> Call:
            args, fewest = map_refs(call.args, in_order), self.chosen[node.name]
            return replace(call, args=args, order=order, fewest=fewest)

        contraction = replace(
            payload,
            out=tuple(payload.out[i] for i in order),
            call=turned(payload.call),
            biased=turned(payload.biased) if payload.biased is not None else None,
        )
        args = tuple(Ref(given.get(name, name)) for name in (x, w))
        self.turn(node, replace(node, args=args, payload=contraction))

    def given(self, name: str, reader: Node) -> str:
        """What the library's call is given: a value with its channels last, as it sees it."""
        if name not in self.last:
            self.store(self.graph[name], reader)  # an input or a weight: others read the original
        return self.returned(f"{name}_channels", self.graph[name], self.last[name])

    def map(self, node: Node) -> None:
        rank, expr = len(node.type.shape), node.payload
        assert isinstance(expr, Expr)
        order = last_order(rank)

        def moved(e: Expr) -> Expr | None:
            return index(order.index(int(str(e.value)))) if e.op == "index" else None

        args = tuple(Ref(self.operand(i, rank, node)) for i in node.inputs)
        self.turn(node, replace(node, args=args, payload=substitute(expr, moved)))

    def cat(self, node: Node) -> None:
        assert isinstance(node.payload, Cat)
        rank = len(node.type.shape)
        args = tuple(Ref(self.operand(i, rank, node)) for i in node.inputs)
        axis = last_order(rank).index(node.payload.axis)
        self.turn(node, replace(node, args=args, payload=Cat(axis)))

    def pool(self, node: Node) -> None:
        assert isinstance(node.payload, Call)
        call = replace(node.payload, order=last_order(len(node.type.shape)))
        self.turn(node, replace(node, payload=call))

    def window(self, node: Node) -> None:
        """Windows of a value with its channels last; what is in them stands behind, as before."""
        windows, x = node.payload, node.inputs[0]
        assert isinstance(windows, Windows)
        rank = len(self.graph[x].type.shape)
        order = last_order(rank)
        slides = tuple(replace(s, axis=order.index(s.axis)) for s in windows.slides)
        shape = tuple(node.type.shape[i] for i in (*order, *range(rank, len(node.type.shape))))
        made = replace(
            node,
            args=(Ref(self.last[x]),),
            type=TensorType(shape, node.type.dtype),
            payload=replace(windows, slides=slides),
        )
        self.windows[node.name] = self.add(f"{node.name}_last", made)

    def reduce(self, node: Node) -> None:
        self.turn(node, replace(node, args=(Ref(self.windows[node.inputs[0]]),)))

    def as_eager(self, node: Node) -> Node:
        """A call whose operands lie as eager's: ATen's kernels and its results follow that."""
        first = {name: self.first(name) for name in node.inputs if self.hangs(name)}

        def dense(ref: Ref) -> Ref:
            return Ref(first[ref.name]) if ref.name in first else ref

        def called(call: Call) -> Call:
            args, kwargs = (map_refs(value, dense) for value in (call.args, call.kwargs))
            return replace(call, args=args, kwargs=kwargs)

        payload = node.payload
        if isinstance(payload, Contraction):
            biased = payload.biased and called(payload.biased)
            payload = replace(payload, call=called(payload.call), biased=biased)
        elif isinstance(payload, Call):
            payload = called(payload)
        return replace(node, args=map_refs(node.args, dense), payload=payload) if first else node

    def hangs(self, name: str) -> bool:
        """Whether it is, or is a view of, a value that lies with its channels last."""
        while name not in self.lie and self.graph[name].op == "view":
            name = self.graph[name].inputs[0]
        return name in self.lie

    def first(self, name: str) -> str:
        """A value of which neighbours are the channels, stored as eager does."""
        if name not in self.firsts:
            node = self.graph[name]
            stored = replace(node, op="map", args=(Ref(name),), payload=load(0))
            self.firsts[name] = self.add(f"{name}_first", stored)
        return self.firsts[name]

    def turn(self, node: Node, turned: Node) -> None:
        """A node in the place of another, which becomes a view of it."""
        name = self.add(f"{node.name}_last", replace(turned, type=_last(node)))
        self.last[node.name] = name
        order = View("permute", first_order(len(node.type.shape)))
        if node.name in self.back:
            made = replace(node, op="view", args=(Ref(name),), payload=order)
            view = self.add(f"{node.name}_turned", made)
            self.nodes[node.name] = replace(node, op="map", args=(Ref(view),), payload=load(0))
            return
        self.lie.add(node.name)
        self.nodes[node.name] = replace(node, op="view", args=(Ref(name),), payload=order)

    def store(self, node: Node, reader: Node | None = None) -> None:
        """A value with its channels first, stored with its channels last for a reader."""
        order = View("permute", last_order(len(node.type.shape)))
        origin = replace((reader or node).origin, op="channels_last")
        sources = node.sources if node.op != "view" else ()  # to turn a view is no operator
        made = replace(node, type=_last(node), origin=origin, sources=sources)
        view = self.add(
            f"{node.name}_turned", replace(made, op="view", args=(Ref(node.name),), payload=order)
        )
        stored = replace(made, op="map", args=(Ref(view),), payload=load(0))
        self.last[node.name] = self.add(f"{node.name}_last", stored)

    # ---- operands ----------------------------------------------------------------------------

    def operand(self, name: str, rank: int, reader: Node) -> str:
        """A value with its channels last, as an operand that broadcasts to a map's rank."""
        shape = self.graph[name].type.shape
        if name in self.last and len(shape) == rank:
            return self.last[name]
        if not shape:
            return name
        full = (*(1 for _ in range(rank - len(shape))), *shape)
        if all(d == 1 for i, d in enumerate(full) if i != CHANNEL):
            return self.view("reshape", name, (full[CHANNEL],), reader)
        name = self.view("reshape", name, full, reader)
        return self.view("permute", name, tuple(full[i] for i in last_order(rank)), reader)

    def view(self, kind: str, name: str, shape: Shape, reader: Node) -> str:
        """A view for a reader; of a vector that was reshaped, the vector itself."""
        known = self.nodes
        if kind == "reshape":
            while known[name].type.shape != shape and _reshapes(known[name]):
                name = known[name].inputs[0]
            if known[name].type.shape == shape:
                return name
        if (name, shape) not in self.views:
            dims = last_order(len(shape)) if kind == "permute" else ()
            type = TensorType(shape, known[name].type.dtype)
            made = replace(
                reader, op="view", args=(Ref(name),), type=type, payload=View(kind, dims)
            )
            self.views[name, shape] = self.add(f"{name}_last", made)
        return self.views[name, shape]

    def returned(self, wish: str, node: Node, last: str) -> str:
        """The view with the channels first that the library's call is given."""
        if node.name in self.lie:
            return node.name
        order = View("permute", first_order(len(node.type.shape)))
        origin = self.nodes[last].origin
        view = Node(wish, "view", (Ref(last),), node.type, origin, order, node.sources)
        return self.add(wish, view)

    def add(self, wish: str, node: Node) -> str:
        name = fresh_name(wish, self.taken)
        self.nodes[name] = replace(node, name=name)
        return name


def _last(node: Node) -> TensorType:
    shape = node.type.shape
    return TensorType(tuple(shape[i] for i in last_order(len(shape))), node.type.dtype)


def _lies_either_way(shape: Shape) -> bool:
    """Whether a weight is the same memory in both orders: one tap, or one channel."""
    return shape[CHANNEL] == 1 or all(d == 1 for d in shape[2:])


def _reshapes(node: Node) -> bool:
    return isinstance(node.payload, View) and node.payload.kind == "reshape"


def _is_product(node: Node) -> bool:
    """Whether it is a matrix product, whose operands dense.py takes care of."""
    return isinstance(node.payload, Contraction) and node.payload.is_product


def _is_part(node: Node) -> bool:
    return isinstance(node.payload, Call) and node.payload.target == "getitem"
