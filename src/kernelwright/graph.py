"""The graph: what a captured model is made of, at two levels.

A captured Graph holds ATen composites by name (`linear`, `group_norm`, `mish`), so that laws read
like mathematics. `expand` lowers it to a Graph of seven primitives; the planner knows only those:

    map       a scalar Expr over broadcast operands
    reduce    sum, max, min or prod over axes
    contract  matrix products and convolutions
    view      reshape, permute, expand, slice: index maps without arithmetic
    cat       several values joined along an axis: a choice among them by the coordinate
    window    sliding windows: an axis becomes places x what a window has at each, with padding
    opaque    any other ATen call

Nodes refer to each other by name; a Graph lists them in an order in which it can be run. Dimensions
are integers or sympy expressions of the batch size: polynomials, with rounded quotients in them.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import sympy
import torch
from torch.utils import _pytree as pytree
from torch.utils._sympy.functions import FloorDiv, IntTrueDiv, Mod, PythonMod

from kernelwright.expr import Expr, show

Dim: TypeAlias = "int | sympy.Expr"
Shape: TypeAlias = tuple[Dim, ...]

PRIMITIVES = ("map", "reduce", "contract", "view", "cat", "window", "opaque")
SOURCES = ("input", "parameter", "buffer", "constant")
STORED = (torch.float32, torch.float16, torch.bfloat16, torch.bool)  # types that kernels write
DIVISIONS = (FloorDiv, IntTrueDiv, Mod, PythonMod)


@dataclass(frozen=True)
class Ref:
    """The value of the node with this name."""

    name: str

    def __repr__(self) -> str:
        return f"%{self.name}"


@dataclass(frozen=True)
class Scalar:
    """A number that is known only at a call, over sizes and over elements of tensors.

    `items` gives, for a symbol that .item() stands for, the tensor of one element. Plain sizes are
    Dims and need no Scalar. See scalars.py for what can be done with it.
    """

    expr: sympy.Expr
    items: tuple[tuple[str, Ref], ...] = ()

    def __repr__(self) -> str:
        read = "".join(f", {symbol} = {ref}.item()" for symbol, ref in self.items)
        return f"({self.expr}{read})"


@dataclass(frozen=True)
class TensorType:
    """Shape and element type. Every value is contiguous: emitted code sees to it at the door."""

    shape: Shape
    dtype: torch.dtype

    @property
    def numel(self) -> Dim:
        return product(self.shape)

    def __str__(self) -> str:
        short = str(self.dtype).removeprefix("torch.").replace("float", "f")
        return f"{short}[{', '.join(str(d) for d in self.shape)}]"


@dataclass(frozen=True)
class Origin:
    """Where an operator stands in the user's program."""

    op: str
    file: str = ""
    line: int = 0
    module: str = ""

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}" if self.file else self.module or "?"

    def __str__(self) -> str:
        inside = f" in {self.module}" if self.module else ""
        return f"{self.op} at {self.place}{inside}"


@dataclass(frozen=True)
class Reduction:
    """What a `reduce` does: an associative combination over axes of its operand."""

    kind: str
    axes: tuple[int, ...]
    keepdim: bool

    def __str__(self) -> str:
        return f"{self.kind} over {list(self.axes)}{', keepdim' if self.keepdim else ''}"


@dataclass(frozen=True)
class View:
    """What a `view` does: reshape (to the node's own shape), permute by `dims`, expand, or slice.

    A slice takes every `step`th place of the axis `dims[0]` from `start` on, as many as the node's
    own shape says.
    """

    kind: str
    dims: tuple[int, ...] = ()
    start: Dim = 0
    step: int = 1

    def __str__(self) -> str:
        if self.kind == "slice":
            by = f" by {self.step}" if self.step != 1 else ""
            return f"slice of axis {self.dims[0]} from {self.start}{by}"
        return f"{self.kind}{list(self.dims) if self.dims else ''}"


@dataclass(frozen=True)
class Cat:
    """What a `cat` does: its operands one after the other along `axis`."""

    axis: int

    def __str__(self) -> str:
        return f"along {self.axis}"


@dataclass(frozen=True)
class Slide:
    """How a window moves along an axis: from `before` places in front of it, by `step` each time.

    It looks at `size` places that are `spread` apart, backwards if that is negative.
    """

    axis: int
    size: int
    step: int = 1
    spread: int = 1
    before: int = 0

    def exact(self, places: Dim, extent: Dim) -> bool:
        """Whether windows at so many places lie side by side and fill the axis."""
        parted = self.step == self.size and (self.spread == 1 or self.size == 1)
        return parted and self.before == 0 and as_dim(places * self.size) == extent

    def inside(self, places: int, extent: int) -> bool:
        """Whether no window reaches beyond the axis."""
        reach = (self.size - 1) * self.spread
        last = (places - 1) * self.step + max(0, reach) - self.before
        return self.before <= min(0, reach) and last < extent


@dataclass(frozen=True)
class Windows:
    """What a `window` does: each axis of `slides` counts places, and its window is an axis behind.

    So (n, c, h, w) with windows along h and w becomes (n, c, places, places, size, size). What lies
    outside of the operand is `outside`.
    """

    slides: tuple[Slide, ...]
    outside: float

    def __str__(self) -> str:
        def one(s: Slide) -> str:
            by = f" by {s.step}" if s.step != 1 else ""
            spread = f" spread by {s.spread}" if s.spread != 1 else ""
            before = f" from {-s.before}" if s.before else ""
            return f"{s.size}{spread}{by}{before} along {s.axis}"

        return f"windows of {', '.join(one(s) for s in self.slides)}, {self.outside} outside"


@dataclass(frozen=True)
class Call:
    """An ATen call with Refs, numbers, and Dims as arguments; kept for what stays with ATen.

    With an `order`, the axes of what it gives are permuted by that: a convolution in channels_last,
    if the batch has at least `fewest` samples. One `of_pixels` is asked for as a matrix product.
    """

    target: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()
    order: tuple[int, ...] = ()
    fewest: int = 1
    of_pixels: bool = False

    def __str__(self) -> str:
        inside = [repr(a) for a in self.args] + [f"{k}={v!r}" for k, v in self.kwargs]
        permuted = f".permute{self.order}" if self.order else ""
        return f"{self.target}({', '.join(inside)}){permuted}"


@dataclass(frozen=True)
class Affine:
    """The place along one axis of a tensor: axes of a loop nest, each times a step, from an offset.

    No terms: the axis has one place.
    """

    terms: tuple[tuple[int, int], ...] = ()
    offset: int = 0

    def __str__(self) -> str:
        terms = [f"{s}*n{a}" if s != 1 else f"n{a}" for a, s in self.terms]
        return " + ".join([*terms, *([str(self.offset)] if self.offset else [])]) or "0"


BIAS = Ref("bias")


@dataclass(frozen=True)
class Contraction:
    """What a `contract` does: the result is the sum of left times right over a loop nest.

    `sizes` are those of the nest's axes; `left`, `right` and `out` give, for each axis of a tensor,
    the place in it, and a place outside of the tensor counts for nothing (padding). What an axis of
    the nest is follows from where it occurs. `call` asks the library for it, `biased` for it with a
    bias added, which stands there as BIAS. `by_strides` says that it reads matrices as they lie if
    their rows or columns lie along memory, and copies others; what other calls copy is not known.
    """

    sizes: tuple[Dim, ...]
    left: tuple[Affine, ...]
    right: tuple[Affine, ...]
    out: tuple[Affine, ...]
    call: Call
    biased: Call | None = None
    by_strides: bool = False

    def _axes(self, *, left: bool, right: bool, out: bool) -> tuple[int, ...]:
        def occurs(index: tuple[Affine, ...]) -> set[int]:
            return {axis for place in index for axis, _ in place.terms}

        wanted = ((occurs(self.left), left), (occurs(self.right), right), (occurs(self.out), out))
        every = range(len(self.sizes))
        return tuple(a for a in every if all((a in found) == there for found, there in wanted))

    @property
    def batch(self) -> tuple[int, ...]:
        return self._axes(left=True, right=True, out=True)

    @property
    def rows(self) -> tuple[int, ...]:
        return self._axes(left=True, right=False, out=True)

    @property
    def columns(self) -> tuple[int, ...]:
        return self._axes(left=False, right=True, out=True)

    @property
    def depth(self) -> tuple[int, ...]:
        return self._axes(left=True, right=True, out=False)

    @property
    def is_product(self) -> bool:
        """Whether each axis of a tensor is walked by one axis of the nest, or has one place."""
        places = (*self.left, *self.right, *self.out)
        return all(p.offset == 0 and [s for _, s in p.terms] in ([], [1]) for p in places)

    @property
    def flops(self) -> Dim:
        """Multiply-adds count twice."""
        return as_dim(2 * product(list(self.sizes)))

    def __str__(self) -> str:
        def indexed(name: str, index: tuple[Affine, ...]) -> str:
            return f"{name}[{', '.join(str(p) for p in index)}]"

        nest = " x ".join(f"n{a}:{size}" for a, size in enumerate(self.sizes))
        product = f"{indexed('left', self.left)} * {indexed('right', self.right)}"
        return f"{indexed('out', self.out)} = sum of {product} over {nest}"


Payload = Expr | Reduction | View | Cat | Windows | Contraction | Call | None


@dataclass(frozen=True)
class Node:
    """One operation. `sources` names the captured operators that it carries out."""

    name: str
    op: str
    args: tuple[Any, ...]
    type: TensorType
    origin: Origin
    payload: Payload = None
    sources: tuple[str, ...] = ()

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The names of the operands, in order, found anywhere in the arguments."""
        names = refs(self.args)
        if self.op == "opaque" and isinstance(self.payload, Call):
            names = refs((self.payload.args, self.payload.kwargs))
        return tuple(names)

    def __str__(self) -> str:
        detail = show(self.payload) if isinstance(self.payload, Expr) else str(self.payload or "")
        args = ", ".join(repr(a) for a in self.args)
        return f"%{self.name}: {self.type} = {self.op}({args}) {detail}".rstrip()


@dataclass(frozen=True)
class Guard:
    """A condition on sizes that the trace relied on, and where in the program it was asked."""

    test: sympy.Basic
    place: str = ""

    @property
    def divisors(self) -> tuple[sympy.Expr, ...]:
        """Sizes that the test divides by, and that may vanish; those inside of others first."""
        found = dict.fromkeys(
            n.args[1] for n in sympy.postorder_traversal(self.test) if isinstance(n, DIVISIONS)
        )
        return tuple(d for d in found if d.free_symbols)

    def holds(self, sizes: Mapping[str, int]) -> bool:
        symbols = {s: sizes[str(s)] for s in self.test.free_symbols}
        if any(d.subs(symbols) == 0 for d in self.divisors):
            return False
        return bool(self.test.subs(symbols))

    def holds_from(self, least: Mapping[str, int]) -> bool:
        """Whether it goes without saying for sizes that are at least these."""
        sizes = {
            s: least[str(s)] + sympy.Dummy(integer=True, nonnegative=True)
            for s in self.test.free_symbols
        }
        return not self.divisors and self.test.subs(sizes) == sympy.true

    def __str__(self) -> str:
        return f"{self.test} at {self.place}" if self.place else str(self.test)


@dataclass(frozen=True)
class Contract:
    """What holds around the values of a graph, and what emitted code must see to.

    `guards` are conditions on sizes. `random` says that the forward draws random numbers, `refused`
    why the original forward has to run in every call, `fixed` why the batch is not free. For each
    leaf of the outputs, `reaches` names the sources that its gradient flows to and `strides` how
    eager lays it out (None: unknown); `follows` names inputs whose order in memory decides how the
    outputs lie, or that eager refuses in another order, `copies` those that it hands on, or takes,
    only if they are contiguous, `repeats` those with which results lie otherwise if all samples are
    one and the same, an expansion. `memory` names for each leaf the source whose memory eager's
    result lies in; results that lie in the same memory of their own have the same other name.
    `given` tells for each whether it is the very tensor of a source. `recorded` holds the sets of
    sources that ask for gradients where this is so, None if that does not matter; elsewhere results
    lie in the orders `otherwise`, if that is known. `placed` gives the strides of eager's operands
    for calls whose values depend on these. `asks_mode` says that the forward asks whether gradients
    are recorded, as they are here or not. `history` is what autograd records of each leaf
    (histories.py), None if it cannot. `sizes` are those of the free axes when all of this was seen,
    on `device`.
    """

    guards: tuple[Guard, ...] = ()
    random: bool = False
    refused: str | None = None
    fixed: str | None = None
    reaches: tuple[frozenset[str], ...] | None = None
    strides: tuple[tuple[int, ...] | None, ...] | None = None
    follows: frozenset[str] = frozenset()
    copies: frozenset[str] = frozenset()
    repeats: frozenset[str] = frozenset()
    memory: tuple[str | None, ...] | None = None
    given: tuple[bool, ...] = ()
    recorded: tuple[frozenset[str], ...] | None = None
    otherwise: tuple[tuple[int, ...] | None, ...] | None = None
    asks_mode: bool = False
    placed: dict[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    history: tuple[str, ...] | None = None
    sizes: tuple[tuple[str, int], ...] = ()
    device: str = "cpu"


@dataclass(frozen=True)
class Counter:
    """A buffer, by its place in the module, that a call adds a number to; `source` said so."""

    buffer: str
    by: int
    source: str


@dataclass(frozen=True)
class Graph:
    """Nodes in running order, what is returned, and which buffers are written at the end.

    `mutations` are buffers with the values that they get, `counters` those that are counted up
    instead (counters.py). `targets` gives a source's place in the module (`gemm.weight`; for a
    tensor that is no parameter or buffer, a Python expression: see places.py), `symbols` the input
    and axis that decide a symbolic size, `constants` the tensors that the forward itself creates,
    `mode` whether the graph holds in training mode, in eval mode, or in any, `contract` what holds
    around the values.
    """

    nodes: tuple[Node, ...]
    outputs: Any
    mutations: tuple[tuple[str, str], ...] = ()
    counters: tuple[Counter, ...] = ()
    targets: dict[str, str] = field(default_factory=dict)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    symbols: dict[str, tuple[str, int]] = field(default_factory=dict)
    mode: str = "any"
    contract: Contract = Contract()

    @cached_property
    def by_name(self) -> dict[str, Node]:
        return {n.name: n for n in self.nodes}

    @cached_property
    def users(self) -> dict[str, list[str]]:
        """For each value, the nodes that read it (each once)."""
        found: dict[str, list[str]] = {n.name: [] for n in self.nodes}
        for n in self.nodes:
            for name in dict.fromkeys(n.inputs):
                found[name].append(n.name)
        return found

    @cached_property
    def results(self) -> tuple[str, ...]:
        """Every value that must exist at the end: outputs and new buffer values."""
        names = [*refs(self.outputs), *(value for _, value in self.mutations)]
        return tuple(dict.fromkeys(names))

    def __getitem__(self, name: str) -> Node:
        return self.by_name[name]

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    @property
    def parts_the_batch(self) -> bool:
        """Whether a size is a quotient that is rounded down."""
        dims = [d for node in self for d in node.type.shape if not isinstance(d, int)]
        return any(without_floors(d) != d for d in dims)

    def base(self, name: str) -> str:
        """The value itself, or what it is, through any number of views, a view of."""
        while self[name].op == "view":
            name = self[name].inputs[0]
        return name

    def regrouped(self, name: str) -> str:
        """What a value is, through reshapes and permutations alone, a regrouping of."""
        while self.regroups(name):
            name = self[name].inputs[0]
        return name

    def regroups(self, name: str) -> bool:
        """Whether each element has its place again, so that the view can be undone."""
        node = self[name]
        if not isinstance(node.payload, View):
            return False
        whole = node.type.shape == self[node.inputs[0]].type.shape  # expanded to what it was
        return node.payload.kind in ("reshape", "permute") or whole

    def with_nodes(self, nodes: list[Node]) -> Graph:
        """The same graph with other nodes, in running order, without those nothing depends on."""
        by_name = {n.name: n for n in nodes}
        needed = {n.name for n in nodes if n.op in SOURCES}
        stack = list(self.results)
        while stack:
            name = stack.pop()
            if name not in needed:
                needed.add(name)
                stack += by_name[name].inputs
        return replace(self, nodes=tuple(_running_order([n for n in nodes if n.name in needed])))

    def __str__(self) -> str:
        lines = [str(n) for n in self.nodes]
        lines += [f"{buffer} <- %{value}" for buffer, value in self.mutations]
        lines += [f"{c.buffer} += {c.by}" for c in self.counters]
        return "\n".join([*lines, f"return {self.outputs}"])


def _running_order(nodes: list[Node]) -> list[Node]:
    """Operands first, and otherwise the given order: random operators must not change places."""
    position = {n.name: i for i, n in enumerate(nodes)}
    waiting = {n.name: len(set(n.inputs)) for n in nodes}
    users: dict[str, list[str]] = {n.name: [] for n in nodes}
    for n in nodes:
        for name in set(n.inputs):
            users[name].append(n.name)
    ready = [position[name] for name, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    order: list[Node] = []
    while ready:
        node = nodes[heapq.heappop(ready)]
        order.append(node)
        for user in users[node.name]:
            waiting[user] -= 1
            if waiting[user] == 0:
                heapq.heappush(ready, position[user])
    return order


def is_differentiable(dtype: torch.dtype) -> bool:
    """Whether gradients flow through values of this type."""
    return dtype.is_floating_point or dtype.is_complex


def refs(value: Any) -> list[str]:
    """The names of all Refs inside nested containers, in order."""
    if isinstance(value, Ref):
        return [value.name]
    if isinstance(value, Scalar):
        return [ref.name for _, ref in value.items]
    if type(value) in (tuple, list):
        return [name for item in value for name in refs(item)]
    leaves = pytree.tree_leaves(value)
    return [name for leaf in leaves if isinstance(leaf, Ref | Scalar) for name in refs(leaf)]


def map_refs(value: Any, change: Callable[[Ref], Any]) -> Any:
    """Replace every Ref inside nested containers, named tuples and dataclasses among them."""
    if isinstance(value, Ref):
        return change(value)
    if isinstance(value, Scalar):
        return replace(value, items=tuple((s, map_refs(r, change)) for s, r in value.items))
    if type(value) in (tuple, list):
        return type(value)(map_refs(v, change) for v in value)
    return pytree.tree_map(
        lambda x: map_refs(x, change) if isinstance(x, Ref | Scalar) else x, value
    )


def lined_up(shape: Shape, rank: int) -> Shape:
    """The shape with as many axes as what it is broadcast to."""
    return (*(1,) * (rank - len(shape)), *shape)


def broadcast(*shapes: Shape) -> Shape | None:
    """The shape that these broadcast to, or None; symbolic sizes are taken to differ from one."""
    rank = max((len(s) for s in shapes), default=0)
    padded = [lined_up(s, rank) for s in shapes]
    wanted = [{size for size in sizes if size != 1} for sizes in zip(*padded, strict=True)]
    if any(len(sizes) > 1 for sizes in wanted):
        return None
    return tuple(sizes.pop() if sizes else 1 for sizes in wanted)


def identifier(wish: str) -> str:
    """A word for C++ and Python that is close to the user's own name for the thing."""
    stem = re.sub(r"\W", "_", wish, flags=re.ASCII).strip("_") or "value"
    return f"v{stem}" if stem[0].isdigit() else stem


def fresh_name(wish: str, taken: set[str]) -> str:
    """`wish`, or `wish_2`, `wish_3`, ... if that is taken; the name is taken from now on."""
    name, count = wish, 2
    while name in taken:
        name, count = f"{wish}_{count}", count + 1
    taken.add(name)
    return name


def product(dims: tuple[Dim, ...] | list[Dim]) -> Dim:
    return _product(tuple(dims))


@lru_cache(maxsize=4096)
def _product(dims: tuple[Dim, ...]) -> Dim:
    """Asked of the same few shapes again and again; arithmetic on symbols is slow."""
    total: Dim = 1
    for d in dims:
        total = as_dim(total * d)
    return total


def as_dim(value: Any) -> Dim:
    """An int where the value is one, else the simplified expression."""
    if isinstance(value, int):
        return value
    simple = sympy.expand(value)
    if simple.has(FloorDiv):
        simple = sympy.expand(simple.replace(FloorDiv, _divided))
    return int(simple) if simple.is_Integer else simple


def _divided(number: sympy.Expr, by: sympy.Expr) -> sympy.Expr:
    """Without a floor where nothing is left over, whatever the sizes are: batch**2 // batch."""
    quotient = sympy.cancel(number / by)
    polynomial = quotient.as_poly(*quotient.free_symbols) if quotient.free_symbols else None
    whole = polynomial is not None and all(c.is_Integer for c in polynomial.coeffs())
    return quotient if whole else FloorDiv(number, by)


def without_floors(expr: sympy.Expr) -> sympy.Expr:
    """The expression with its rounded quotients (half of the batch) taken for symbols."""
    return expr.xreplace({f: sympy.Dummy(integer=True) for f in expr.atoms(FloorDiv)})


@lru_cache(maxsize=4096)
def quotient(whole: Dim, part: Dim) -> Dim | None:
    """whole / part where it is a whole number for every batch size, else None."""
    if isinstance(whole, int) and isinstance(part, int):
        return whole // part if part and whole % part == 0 else None
    ratio = as_dim((whole / part).cancel() if not isinstance(whole, int) else whole / part)
    if isinstance(ratio, int):
        return ratio
    plain = without_floors(ratio)
    polynomial = plain.as_poly(*plain.free_symbols)
    if polynomial is None or not all(c.is_Integer for c in polynomial.coeffs()):
        return None
    return ratio


def hint(dim: Dim, batch: int = 1024) -> int:
    """A number for a dimension: itself, or its value at a typical batch size."""
    return dim if isinstance(dim, int) else _at_batch(dim, batch)


@lru_cache(maxsize=4096)
def _at_batch(dim: sympy.Expr, batch: int) -> int:
    return int(dim.subs({s: batch for s in dim.free_symbols}))


def never_negative(dim: Dim) -> bool:
    """Whether this is known to be at least zero, however few samples there are, even none."""
    if isinstance(dim, int):
        return dim >= 0
    polynomial = dim.as_poly(*dim.free_symbols)
    return polynomial is not None and all(c.is_number and c >= 0 for c in polynomial.coeffs())


# Batches so small that a slice of them may be empty, or outside of them; indices are small numbers.
FEW_SAMPLES = 64


def smallest_batch(graph: Graph) -> int:
    """The smallest batch from which on no size is negative, and slices lie inside of values.

    torch.export takes a batch to be at least two; eager refuses `x[0]` of none, or clamps. What
    repeats the edges of an image refuses none too, but with deterministic algorithms it does not.
    """

    def lies_inside(node: Node, view: View, batch: int) -> bool:
        axis = view.dims[0]
        start, count = hint(view.start, batch), hint(node.type.shape[axis], batch)
        whole = hint(graph[node.inputs[0]].type.shape[axis], batch)
        last = start + (count - 1) * view.step
        return 0 <= start <= whole and (count == 0 or (count > 0 and last < whole))

    views = [(n, n.payload) for n in graph if isinstance(n.payload, View)]
    slices = [(node, view) for node, view in views if view.kind == "slice"]
    free = {d for n in graph for d in n.type.shape if not isinstance(d, int)}

    def fits(batch: int) -> bool:
        return all(hint(d, batch) >= 0 for d in free) and all(
            lies_inside(*s, batch) for s in slices
        )

    few = [b for b in range(FEW_SAMPLES) if not fits(b)]
    return max(*few, -1, 0 if any(map(_repeats_edges, graph)) else -1) + 1


def _repeats_edges(node: Node) -> bool:
    call = node.payload
    if not isinstance(call, Call) or call.target != "torch.ops.aten.pad.default":
        return False
    return bool(call.args[2] != "constant")
