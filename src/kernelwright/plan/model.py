"""What a plan is made of: reasons, accesses, the program of a kernel, regions, the plan.

A Program is the loop nest that both backends share. Its axes are atoms (named axis pieces). Rows
run in parallel; a row's elements are combined by the stages (reductions, in order) over the whole
row or over its contiguous segments; stores write per element, per segment or per row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property

import sympy
import torch

from kernelwright.expr import Expr, cost, leaves, show
from kernelwright.graph import Call, Contraction, Dim, Graph, as_dim, hint, product
from kernelwright.plan.convolutions import ConvForm
from kernelwright.targets import ConvLoop, Loop

# What whoever needs it computes on the way, unless a region has it; what is a step of its own.
LAZY, CALLS = ("map", "cat", "window"), ("contract", "opaque")


class Code(Enum):
    """The closed set of reasons for a decision of the planner; the text takes the numbers."""

    TAIL = "one kernel for {count} operator(s) over the same rows"
    POINTWISE = "one kernel for {count} operator(s), element by element"
    LIBRARY = "a library contraction: {flops:.3g} flop, {bytes:.3g} bytes"
    CHANNELS_LAST = "{rest}; in channels_last{from_batch}, which saves about {gain:.0f} us"
    CHANNELS_KEPT = "{rest}; in channels_last{from_batch}, as what it reads"
    TF32_LAST = "{rest}; channels first: its error would be {error:.1e}, eager's is {eager:.1e}"
    FIRST_FASTER = (
        "{rest}; channels first: the other order saves {gain:.0f} us and costs {cost:.0f}"
    )
    FIRST_TAIL = "{rest}; channels first: {region}, behind it, would take {lost:.0f} us longer"
    FEW = "{rest}; a kernel of its own for up to {most} rows"
    THIN = "{rest}; one on tensor cores that reads the weight once for up to {most}"
    OPAQUE = "no primitive form of {op}: it stays with ATen"
    NOT_FLOAT = "{op} on {dtype} elements: only float32, float16 and bfloat16 are fused"
    BIAS_KEPT = "the bias stays in the library call, since no kernel follows that could add it"
    ROWS_DIFFER = "{op} runs over other axes than the rows of {region}, so a second kernel follows"
    BROADCASTS = "{op} broadcasts its operand to a larger tensor than the rows of {region} hold"
    MISALIGNED = "{op} splits the axes of {region} where no common factor allows it"
    TOO_LONG = "{op}: a row of {elements} elements does not stay in registers for two levels"
    STATISTICS = (
        "{op} waits for all of {region}, which runs over several tiles of a convolution,"
        " so it follows"
    )
    CYCLE = "{op} needs a value that itself waits for {region}"
    LEVELS = "{op} would be a third level of reduction in {region}"
    SLICED = "{op} takes a part of what {region} computes, so that is stored first"
    OVERLAPS = "{op} looks at what {region} computes through windows that overlap or leave gaps"
    JOINED = "{op} joins what {region} computes with other values, so that is stored first"
    SCATTERED = "{op} would need segments in {region} that are not neighbours in memory"
    EPILOGUE = "{op} reads {region} from memory: it is stored by the epilogue of its product"
    WITH_BIAS = "{op} reads {region} from memory: the library call stores it with its bias"
    FEW_PARTS = "{op} reads {region} from memory: a kernel over {rows} row(s) would store it slowly"
    STORED = (
        "stored once for {count} kernels: {once:.3g} bytes are moved, {again:.3g} if each"
        " computed it"
    )
    RECOMPUTED = (
        "computed in each of {count} kernels: {again:.3g} bytes are moved, {once:.3g} if it"
        " were stored"
    )
    OVERLAPPED = (
        "stored, since windows look {times:.3g} times at each element: {once:.3g} bytes are moved"
        " for it, and {again:.3g} could be in the time of computing it so often"
    )
    WINDOWED = (
        "{op} as a sum over windows: {own:.3g} us by estimate, {library:.3g} in the library, and"
        " what follows is in the same kernel"
    )
    GROUPED_LIBRARY = (
        "{op} stays with the library: {library:.3g} us by estimate, {own:.3g} as a sum over windows"
    )
    GROUPED = "{op} stays with the library, which is faster at few channels a group on this machine"
    ALONE = "{op} alone: ATen's own loop is faster than a kernel that does nothing else"
    ROUNDED = "{op} rounds to {dtype} on the way to a float32 result: it stays with ATen"
    DECLINED = "{op} with these arguments has no primitive form: it stays with ATen"
    GEMM = (
        "a generated product ({loop}) with {count} operator(s) in its epilogue;"
        " the library below {fewest} rows"
    )
    GEMM_ALONE = "a generated product ({loop}); the library below {fewest} rows"
    CONV = (
        "a generated convolution ({loop}) with {count} operator(s) in its epilogue; estimated"
        " {ours:.3g} us, with the library and a kernel after it {library:.3g}"
    )
    CONV_ALONE = (
        "a generated convolution ({loop}); estimated {ours:.3g} us, the library {library:.3g}"
    )
    CONV_AGAIN = (
        "a generated convolution ({loop}) with {count} operator(s) in its epilogue, kernel {number}"
        " of {passes} that it is made again for: estimated {again:.3g} us, {once:.3g} if it were"
        " stored once, with the library {library:.3g}"
    )
    CONV_STORED = (
        "a generated convolution ({loop}) with {count} operator(s) in its epilogue, stored for"
        " {passes} kernel(s) more: estimated {once:.3g} us, {again:.3g} if it were made again in"
        " each, with the library {library:.3g}"
    )
    CONVOLUTION = "{op} stays with the library: there is no generated convolution of its kind"
    CONV_LIBRARY = (
        "{op} stays with the library: estimated {library:.3g} us with a kernel after it,"
        " a generated convolution {ours:.3g}"
    )
    NO_MATRICES = "{op} stays with the library: it is no product of two matrices"
    SIZES = "{op} stays with the library: a generated product needs sizes that are known"
    NARROW = "{op} stays with the library: {columns} column(s) fill no tile"
    STRIDES = "{op} stays with the library: of its {side} operand, {why}"
    FEW_ROWS = "{op} stays with the library: {rows} row(s) are fewer than {fewest}"
    LIBRARY_FASTER = "{op} stays with the library, which is faster at {columns} x {depth}"
    MIXED = "{op} stays with the library: there is no generated product for {dtype}"
    SHARED = "{op} stores its product: {region} is not alone in reading it"
    SECOND = "{op} stores its product: {region} follows another product"
    WALKS = "{op} stores its product: {region} does not walk it row by row"
    WHOLE_ROW = "{op} stores its product: {region} needs whole rows before it can store"
    OVERLAP = "{op} stores its result: the windows of {region} overlap"
    TILE = "{op} stores its result: no tile holds together what {region} needs"
    SEGMENTS = "{op} stores its product: the segments of {region}, {segment} columns, fit no tile"


@dataclass(frozen=True)
class Reason:
    code: Code
    numbers: tuple[tuple[str, object], ...] = ()

    def __str__(self) -> str:
        return self.code.value.format(**dict(self.numbers))


def reason(code: Code, **numbers: object) -> Reason:
    return Reason(code, tuple(numbers.items()))


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


@dataclass(frozen=True)
class Program:
    """Rows x (segments x inner elements), the stages, the stores."""

    sizes: dict[int, Dim] = field(hash=False)
    rows: tuple[int, ...]
    outer: tuple[int, ...]
    inner: tuple[int, ...]
    stages: tuple[Stage, ...]
    stores: tuple[Store, ...]
    strided: bool
    labels: dict[Expr, str] = field(default_factory=dict, hash=False, repr=False)

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
    def coordinates(self) -> list[Coordinate]:
        """Everything that a place of the loop nest is turned into."""
        places = [leaf.value for expr in self.exprs for leaf in leaves(expr, "index")]
        used = [at for at in places if isinstance(at, Coordinate)]
        return [*(a.at for a in self.accesses), *(r.at for r in self.ranges), *used]

    @cached_property
    def lanes(self) -> tuple[int, ...]:
        """The atoms along which neighbouring lanes lie: every access moves by one stride there."""
        return flat_run(self.rows if self.strided else self.inner, self.sizes, self.coordinates)

    @property
    def segmented(self) -> bool:
        return bool(self.outer)

    def flops(self) -> Dim:
        rows, elements = self.count(self.rows), self.count(self.elements)
        return product([rows, elements, cost(*self.exprs) + len(self.stages)])

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
    depth: int
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
    that follow one another, its passes; the last of them has the steps of all with the `library`,
    for other GPUs than the loop is made for.
    """

    product: str
    loop: ConvLoop
    form: ConvForm
    typical: int
    library: tuple[Region, ...]


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
class Region:
    """One step of the emitted forward: a generated kernel, or a call that stays with ATen.

    A call may carry out a `contraction` of two `operands` and add a `bias`; a product of up to
    `few` rows has a kernel of its own beside the call, one of more rows a `thin` one.
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
    few: int = 0
    thin: ThinRows | None = None

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
        generated = self.gemm or self.conv
        return (self,) if generated is None else generated.library

    def with_library(self, change: Callable[[tuple[Region, ...]], tuple[Region, ...]]) -> Region:
        """The region with other steps on the library's way; itself if it is not generated."""
        if self.gemm is not None:
            return replace(self, gemm=replace(self.gemm, library=change(self.gemm.library)))
        if self.conv is not None:
            return replace(self, conv=replace(self.conv, library=change(self.conv.library)))
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
        body = "\n".join(str(part) for part in (self.call, self.program) if part is not None)
        return head + "\n" + "\n".join(f"  {line}" for line in body.splitlines())


@dataclass(frozen=True)
class Refusal:
    """A fusion that was considered and not made."""

    op: str
    place: str
    why: Reason

    def __str__(self) -> str:
        return f"{self.op} at {self.place}: {self.why}"


@dataclass(frozen=True)
class Shared:
    """A value that several kernels use: whether it is stored for them, and why."""

    value: str
    stored: bool
    readers: int
    why: Reason

    def __str__(self) -> str:
        return f"{self.value}: {self.why}"


@dataclass(frozen=True)
class Plan:
    """Regions in running order, the fusions that were refused, the values with several readers."""

    graph: Graph = field(repr=False)
    regions: tuple[Region, ...]
    refusals: tuple[Refusal, ...]
    shared: tuple[Shared, ...] = ()

    @property
    def library(self) -> tuple[Region, ...]:
        """The steps of the path without generated products."""
        return tuple(s for r in self.regions for s in r.library)

    def __str__(self) -> str:
        lines = [str(r) for r in self.regions]
        lines += [f"shared: {s}" for s in self.shared]
        lines += [f"not fused: {r}" for r in self.refusals]
        return "\n".join(lines)
