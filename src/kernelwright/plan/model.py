"""What a plan is made of: accesses, the program of a kernel, regions, the plan.

A Program is the loop nest that both backends share. Its axes are atoms (named axis pieces). Rows
run in parallel; a row's elements are combined by the stages (reductions, in order) over the whole
row or over its contiguous segments; stores write per element, per segment or per row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import sympy
import torch

from kernelwright.expr import Expr, cost, leaves, postorder, show
from kernelwright.graph import Call, Contraction, Dim, Graph, as_dim, hint, never_negative, product
from kernelwright.plan.convolutions import ConvForm
from kernelwright.plan.reasons import Reason, Refusal, Shared
from kernelwright.targets.target import Attending, ConvLoop, CoreAttending, HostWay, Loop

# What whoever needs it computes on the way, unless a region has it; what is a step of its own.
# How many elements there are.
COUNTS = ("const", "size")
LAZY, CALLS = ("map", "cat", "window"), ("contract", "opaque")


@dataclass(frozen=True)
class Coordinate:
    """A number for each place of the loop nest: a stride for each atom, from an offset on."""

    strides: tuple[tuple[int, Dim], ...]
    offset: Dim = 0

    @property
    def atoms(self) -> frozenset[int]:
        return frozenset(a for a, _ in self.strides)

    def stride(self, atom: int) -> Dim:
        return next((s for a, s in self.strides if a == atom), 0)

    def __str__(self) -> str:
        first = [str(self.offset)] if self.offset != 0 else []
        terms = [f"{s}*{axis_name(a)}" for a, s in self.strides]
        return " + ".join([*first, *terms]) or "0"


@dataclass(frozen=True)
class Range:
    """Whether a coordinate is at least `low` and below `high`; None: nothing lies beyond."""

    at: Coordinate
    low: Dim | None
    high: Dim | None

    @property
    def limits(self) -> list[Dim]:
        """The places at which the answer changes."""
        return [limit for limit in (self.low, self.high) if limit is not None]

    def always(self, first: int, last: int) -> bool:
        """Whether a coordinate that goes from first to last is inside, whatever the batch."""
        above = self.low is None or never_negative(as_dim(first - self.low))
        return above and (self.high is None or never_negative(as_dim(self.high - last - 1)))

    def never(self, first: int, last: int) -> bool:
        """Whether a coordinate that goes from first to last is outside, whatever the batch."""
        below = self.low is not None and never_negative(as_dim(self.low - last - 1))
        return below or (self.high is not None and never_negative(as_dim(first - self.high)))

    def __str__(self) -> str:
        low = f"{self.low} <= " if self.low is not None else ""
        high = f" < {self.high}" if self.high is not None else ""
        return f"{low}{self.at}{high}"


@dataclass(frozen=True)
class Access:
    """Where an element lies in a buffer; outside of the ranges `within` it must not be read."""

    buffer: str
    at: Coordinate
    within: tuple[Range, ...] = ()

    @property
    def strides(self) -> tuple[tuple[int, Dim], ...]:
        return self.at.strides

    @property
    def offset(self) -> Dim:
        return self.at.offset

    @property
    def atoms(self) -> frozenset[int]:
        return self.at.atoms

    def stride(self, atom: int) -> Dim:
        return self.at.stride(atom)

    def __str__(self) -> str:
        return f"{self.buffer}[{self.at}]"


def axis_name(atom: int) -> str:
    return f"i{atom}"


@dataclass(frozen=True)
class Stage:
    """One reduction of a program: combine `expr` over the row, or over each segment of it."""

    name: str
    kind: str
    expr: Expr
    segment: bool

    def __str__(self) -> str:
        span = "segment" if self.segment else "row"
        return f"{self.name} = {self.kind} over the {span} of {show(self.expr)}"


@dataclass(frozen=True)
class Store:
    """One result: `level` says whether there is a value per element, per segment or per row."""

    expr: Expr
    access: Access
    level: str

    def __str__(self) -> str:
        return f"per {self.level}: {self.access} = {show(self.expr)}"


def stage_of_mean(expr: Expr) -> int | None:
    """The stage of which this is the result over a number of elements."""
    if expr.op != "div" or expr.args[0].op != "acc":
        return None
    total, count = expr.args
    return int(str(total.value)) if count.op in COUNTS and count.value != 0 else None


@dataclass(frozen=True)
class Program:
    """Rows x (segments x inner elements), the stages, the stores.

    Lanes lie along the rows of a `strided` program. Where rows are windows, a thread may take some
    of them `together` (windows.py). `counts` are buffers of whole numbers that go up once for the
    whole program, and by how much (lower/in_place.py).
    """

    sizes: dict[int, Dim] = field(hash=False)
    rows: tuple[int, ...]
    outer: tuple[int, ...]
    inner: tuple[int, ...]
    stages: tuple[Stage, ...]
    stores: tuple[Store, ...]
    strided: bool
    labels: dict[Expr, str] = field(default_factory=dict, hash=False, repr=False)
    together: bool = False
    counts: tuple[tuple[str, int], ...] = ()

    @property
    def elements(self) -> tuple[int, ...]:
        return (*self.outer, *self.inner)

    def count(self, atoms: tuple[int, ...]) -> Dim:
        return product([self.sizes[a] for a in atoms])

    @property
    def exprs(self) -> tuple[Expr, ...]:
        return (*(s.expr for s in self.stages), *(s.expr for s in self.stores))

    @cached_property
    def loads(self) -> list[Access]:
        """The distinct accesses that are read, in the order of first use."""
        found: dict[Access, None] = {}
        for expr in self.exprs:
            for leaf in leaves(expr, "load"):
                assert isinstance(leaf.value, Access)
                found[leaf.value] = None
        return list(found)

    def as_large_as(self, access: Access) -> list[Access]:
        """What else is read anew wherever this is, of other tensors."""
        others = [a for a in self.loads if a.buffer != access.buffer]
        return [a for a in others if a.atoms >= access.atoms]

    @cached_property
    def accesses(self) -> list[Access]:
        return [*self.loads, *(s.access for s in self.stores)]

    @cached_property
    def ranges(self) -> list[Range]:
        """The distinct conditions on coordinates, in the order of first use."""
        found: dict[Range, None] = {}
        for expr in self.exprs:
            for leaf in leaves(expr, "inside"):
                assert isinstance(leaf.value, Range)
                found[leaf.value] = None
        for access in self.loads:
            found |= dict.fromkeys(access.within)
        return list(found)

    @cached_property
    def asked(self) -> list[Coordinate]:
        """The places that conditions and numbers depend on."""
        places = [leaf.value for expr in self.exprs for leaf in leaves(expr, "index")]
        used = [at for at in places if isinstance(at, Coordinate)]
        return [*(r.at for r in self.ranges), *used]

    @cached_property
    def coordinates(self) -> list[Coordinate]:
        """Everything that a place of the loop nest is turned into."""
        return [*(a.at for a in self.accesses), *self.asked]

    def is_local(self, axis: int) -> bool:
        """Whether it does with some places along an axis what it does with these among all.

        So no number depends on which places they are, nor on how many there are.
        """
        at = self.coordinates
        numbers: list[object] = [n for c in at for n in (c.offset, *(s for _, s in c.strides))]
        numbers += [limit for part in self.ranges for limit in part.limits]
        numbers += [leaf.value for expr in self.exprs for leaf in leaves(expr, "size")]
        others = [size for atom, size in self.sizes.items() if atom != axis]
        known = all(isinstance(n, int) for n in (*numbers, *others))
        return known and not any(axis in place.atoms for place in self.asked)

    @cached_property
    def lanes(self) -> tuple[int, ...]:
        """The atoms along which neighbouring lanes lie: every access moves by one stride there."""
        return flat_run(self.rows if self.strided else self.inner, self.sizes, self.coordinates)

    @property
    def segmented(self) -> bool:
        return bool(self.outer)

    @property
    def same_reading(self) -> tuple[bool, ...]:
        """For each stage, whether it can see the elements together with the stages before it.

        It joins their reading of the row if it needs none of their results.
        """
        joined: list[bool] = []
        first = 0
        for index, stage in enumerate(self.stages):
            joins = index > 0 and stage.expr.awaits < first and not self.segmented
            first = first if joins else index
            joined.append(joins)
        return tuple(joined)

    @cached_property
    def centres(self) -> tuple[bool, ...]:
        """For each stage, whether it is a sum whose mean is subtracted from something."""
        subtracted = {e.args[1] for e in postorder(*self.exprs) if e.op == "sub"}
        means = {stage_of_mean(e) for e in subtracted}
        return tuple(s.kind == "sum" and i in means for i, s in enumerate(self.stages))

    @property
    def operations(self) -> int:
        """Of one element, reductions included."""
        return cost(*self.exprs) + len(self.stages)

    def flops(self) -> Dim:
        rows, elements = self.count(self.rows), self.count(self.elements)
        return product([rows, elements, self.operations])

    def __str__(self) -> str:
        def axes(atoms: tuple[int, ...]) -> str:
            return " x ".join(f"{axis_name(a)}:{self.sizes[a]}" for a in atoms) or "1"

        head = f"rows {axes(self.rows)}, elements {axes(self.elements)}"
        head += f", segments of {self.count(self.inner)}" if self.segmented else ""
        head += ", strided" if self.strided else ""
        return "\n".join([head, *(f"  {s}" for s in self.stages), *(f"  {s}" for s in self.stores)])


def flat_run(
    order: tuple[int, ...], sizes: dict[int, Dim], coordinates: list[Coordinate]
) -> tuple[int, ...]:
    """The innermost atoms along which every coordinate moves with one constant stride."""
    run = list(order[-1:])
    for outer in reversed(order[:-1]):
        inner = run[0]
        if any(a.stride(outer) != as_dim(a.stride(inner) * sizes[inner]) for a in coordinates):
            break
        run.insert(0, outer)
    return tuple(run)


@dataclass(frozen=True)
class Buffer:
    """A tensor that a region writes."""

    name: str
    shape: tuple[Dim, ...]
    dtype: torch.dtype


def element_type(graph: Graph, name: str) -> torch.dtype:
    """Of a value of the graph; partial results, which no graph has, are float32."""
    return graph[name].type.dtype if name in graph.by_name else torch.float32


@dataclass(frozen=True)
class Operand:
    """How a generated product reads one of its two operands: from a buffer, by strides in elements.

    `outer` and `inner` are the strides of the two batch axes, 0 where all have the same; `row` is
    that from a row (of the right operand, a column of the product) to the next, `depth` that along
    what is summed. One of these two is 1.
    """

    buffer: str
    offset: Dim
    outer: Dim
    inner: Dim
    row: Dim
    depth: Dim

    @property
    def along(self) -> bool:
        """Whether neighbours in memory are neighbours along the depth."""
        return self.depth == 1

    def unreadable(self, multiple: int) -> str:
        """Why a loop cannot read it as it lies; empty: it can. A dense copy is always readable.

        `multiple` is that of the loop: how many elements the copy engine moves at least.
        """
        if self.depth != 1 and self.row != 1:
            return "neither rows nor depth lie along memory"
        others = (self.offset, self.outer, self.inner, self.row if self.along else self.depth)
        if any(sympy.Mod(n, multiple) != 0 for n in others):
            return f"rows or matrices do not begin at multiples of {multiple} elements"
        return ""

    @property
    def batched(self) -> bool:
        return self.outer != 0 or self.inner != 0

    def __str__(self) -> str:
        strides = ", ".join(str(s) for s in (self.outer, self.inner, self.row, self.depth))
        start = f" + {self.offset}" if self.offset != 0 else ""
        return f"{self.buffer}{start} by ({strides})"


@dataclass(frozen=True)
class Gemm:
    """A product that a generated kernel makes and keeps in registers for the region's program.

    `batch` products, an outer and an inner number of them, of `rows` by `columns` each. The program
    loads `product`, which is in memory nowhere. `typical` is the number of rows, those of all
    products together, to choose a tile for. `library` are the steps that give the same results with
    a library product: for fewer than `fewest` rows (`fewest_frozen` if the weight is split
    already), and for other GPUs than the loop is made for.
    """

    product: str
    loop: Loop
    left: Operand
    right: Operand
    batch: tuple[Dim, Dim]
    rows: Dim
    columns: int
    depth: Dim
    fewest: int
    fewest_frozen: int
    typical: int
    library: tuple[Region, ...]

    @property
    def all_rows(self) -> Dim:
        return product([*self.batch, self.rows])


@dataclass(frozen=True)
class Conv:
    """A convolution that a generated kernel makes, tile by tile, for the region's program.

    The program loads `product`, which lies in shared memory alone. `typical` is the number of
    samples to choose a tile for. A convolution that is made again for another program has regions
    that follow one another, its passes; the last of them has the steps of all with the `library`:
    for fewer than `fewest` samples, where eager is more accurate than the loop, and for other GPUs
    than the loop is made for.
    """

    product: str
    loop: ConvLoop
    form: ConvForm
    typical: int
    fewest: int
    library: tuple[Region, ...]


@dataclass(frozen=True)
class Attention:
    """A product, a softmax over its rows and a product with the result, in one kernel.

    `scores` is a program over the first product, which it loads as `product`: its one stage, over
    a row of `keys`, is the largest score, and its expression the score. `weight` is what a row of
    exponentials is multiplied by, an expression of the largest score and of their sum. Keys more
    than a `horizon` behind a query have the score -inf. The region's program loads the second
    product as `mixed`. Neither product is in memory. `batch` of them, an outer and an inner number,
    have `rows` queries of `depth` each, and `columns` features a value. `library` are the steps
    that give the same results apart, for other GPUs.
    """

    product: str
    mixed: str
    loop: Attending | CoreAttending
    query: Operand
    key: Operand
    value: Operand
    batch: tuple[Dim, Dim]
    rows: int
    keys: int
    depth: int
    columns: int
    scores: Program
    weight: Expr
    horizon: int | None
    library: tuple[Region, ...]

    @property
    def operands(self) -> tuple[Operand, Operand, Operand]:
        return self.query, self.key, self.value

    def __str__(self) -> str:
        names = zip(("query", "key", "value"), self.operands, strict=True)
        operands = "\n".join(f"{name} {operand}" for name, operand in names)
        weights = f"weights: exp(score - largest) * {show(self.weight)}"
        return f"{operands}\nscores: {self.scores}\n{weights}"


@dataclass(frozen=True)
class Direct:
    """A kernel of ours for a convolution of up to `most` samples, on the CPU."""

    form: ConvForm
    most: int


@dataclass(frozen=True)
class ThinRows:
    """Rows for which a product reads its weight once, on tensor cores, by the loop's arithmetic.

    `parts` says into how many the depth is cut for up to so many rows, fewer first.
    """

    loop: Loop
    parts: tuple[tuple[int, int], ...]

    @property
    def most(self) -> int:
        return self.parts[-1][0]


@dataclass(frozen=True)
class HostProduct:
    """A product for which the CPU has kernels, by operands as they lie (kernels/product.hpp).

    `batch` products, an outer and an inner number of them. `ways` say for which numbers of rows.
    """

    left: Operand
    right: Operand
    batch: tuple[Dim, Dim]
    rows: Dim
    columns: Dim
    depth: Dim
    ways: tuple[HostWay, ...]


@dataclass(frozen=True)
class Region:
    """One step of the emitted forward: a generated kernel, or a call that stays with ATen.

    A call may carry out a `contraction` of two `operands` and add a `bias`; a product of up to
    `few` rows has a kernel of its own beside the call, one of more rows a `thin` one. On the CPU it
    may have one, `host`, for some numbers of rows, and a small convolution a `direct` one.
    """

    name: str
    kind: str
    nodes: tuple[str, ...]
    why: Reason
    program: Program | None = None
    call: Call | None = None
    outputs: tuple[Buffer, ...] = ()
    reads: tuple[str, ...] = ()
    bytes: Dim = 0
    flops: Dim = 0
    contraction: Contraction | None = None
    operands: tuple[str, ...] = ()
    bias: str | None = None
    gemm: Gemm | None = None
    conv: Conv | None = None
    attention: Attention | None = None
    few: int = 0
    thin: ThinRows | None = None
    host: HostProduct | None = None
    direct: Direct | None = None

    @property
    def is_linear(self) -> bool:
        """Whether a library multiplies rows by the rows of a weight, each dense in memory."""
        of = self.contraction
        if self.kind != "contract" or of is None or not of.is_product or of.batch:
            return False
        (depth,) = of.depth if len(of.depth) == 1 else (None,)
        last = [index[-1].terms for index in (of.left, of.right)]
        return len(of.right) == 2 and last == [((depth, 1),)] * 2

    @property
    def library(self) -> tuple[Region, ...]:
        """The steps without generated products, those of the region itself if it is none."""
        generated = self.gemm or self.conv or self.attention
        return (self,) if generated is None else generated.library

    def with_library(self, change: Callable[[tuple[Region, ...]], tuple[Region, ...]]) -> Region:
        """The region with other steps on the library's way; itself if it is not generated."""
        if self.gemm is not None:
            return replace(self, gemm=replace(self.gemm, library=change(self.gemm.library)))
        if self.conv is not None:
            return replace(self, conv=replace(self.conv, library=change(self.conv.library)))
        if self.attention is not None:
            apart = change(self.attention.library)
            return replace(self, attention=replace(self.attention, library=apart))
        return self

    @property
    def launches(self) -> int:
        """A generated product leaves whole rows to a second kernel; its own splits do not count."""
        if self.gemm is not None and self.program is not None:
            return 2 if any(not s.segment for s in self.program.stages) else 1
        return 0 if self.kind == "view" else 1

    def __str__(self) -> str:
        cost = f"{hint(self.bytes):.3g} B, {hint(self.flops):.3g} flop"
        head = f"{self.kind} {self.name}: {cost}; {self.why}"
        parts = (self.call, self.attention, self.program)
        body = "\n".join(str(part) for part in parts if part is not None)
        return head + "\n" + "\n".join(f"  {line}" for line in body.splitlines())


@dataclass(frozen=True)
class Plan:
    """Regions in running order, the fusions that were refused, the values with several readers.

    `again` says what was decided again after a first plan, and why.
    """

    graph: Graph = field(repr=False)
    regions: tuple[Region, ...]
    refusals: tuple[Refusal, ...]
    shared: tuple[Shared, ...] = ()
    again: tuple[str, ...] = ()

    @property
    def library(self) -> tuple[Region, ...]:
        """The steps of the path without generated products."""
        return tuple(s for r in self.regions for s in r.library)

    def __str__(self) -> str:
        lines = [str(r) for r in self.regions]
        lines += [f"shared: {s}" for s in self.shared]
        lines += [f"not fused: {r}" for r in self.refusals]
        lines += [f"decided again: {finding}" for finding in self.again]
        return "\n".join(lines)
