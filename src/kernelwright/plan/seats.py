"""Which products a generated kernel makes, and which kernel runs in its epilogue.

In: a Plan whose contractions are library calls. Out: the same with a `gemm` region in the place of
each product that can be generated, together with the kernel after it where that fits an epilogue.
Every product and every kernel that keeps its own step has its reason among the refusals.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kernelwright.expr import Expr, call, load, substitute
from kernelwright.graph import Call, Dim, Graph, Node, as_dim, hint, product
from kernelwright.plan.domain import Atoms, flat
from kernelwright.plan.epilogue import Unfit, fit
from kernelwright.plan.few import with_few_rows
from kernelwright.plan.model import (
    LINEAR,
    Access,
    Code,
    Coordinate,
    Gemm,
    Plan,
    Program,
    Refusal,
    Region,
    Store,
    reason,
)
from kernelwright.plan.names import region_name
from kernelwright.plan.policy import Policy
from kernelwright.plan.tails import Tail, tails
from kernelwright.targets import Loop, Target

FEWEST_COLUMNS = 8


def seat(plan: Plan, target: Target, precision: str, batch: int, policy: Policy) -> Plan:
    """The plan with generated products.

    `precision` is that of float32 matrix products, `batch` the one to choose for.
    """
    return _Seating(plan, target, precision, batch, policy).run()


def generated(
    graph: Graph, target: Target, precision: str, batch: int, policy: Policy
) -> frozenset[str]:
    """The contractions that a generated kernel makes, before anything is fused."""
    calls = [
        Region(n.name, "contract", (n.name,), reason(Code.BIAS_KEPT), call=n.payload)
        for n in graph
        if n.op == "contract" and isinstance(n.payload, Call)
    ]
    seating = _Seating(Plan(graph, (), ()), target, precision, batch, policy)
    return frozenset(r.name for r in calls if seating.way(r) is not None)


@dataclass(frozen=True)
class Way:
    """The main loop of a generated product, from how many rows on, and for how many typically."""

    loop: Loop
    fewest: int
    typical: int


class _Seating:
    def __init__(
        self, plan: Plan, target: Target, precision: str, batch: int, policy: Policy
    ) -> None:
        regions = tuple(with_few_rows(plan.graph, r) for r in plan.regions)
        self.plan = replace(plan, regions=regions)
        self.graph = plan.graph
        self.target = target
        self.precision = precision
        self.batch = batch
        self.policy = policy
        self.refusals: list[Refusal] = []
        self.names = {r.name for r in plan.regions if r.program is not None}

    def run(self) -> Plan:
        after = {id(t.product): t for t in tails(self.plan)}
        # A product and its tail become one step where the tail was: only the tail reads the
        # product, and what else the tail reads may be made in between.
        replaced: dict[int, Region | None] = {}
        for region in self.plan.regions:
            way = self.way(region)
            if way is None:
                continue
            tail = after.get(id(region))
            taken = tail is not None and id(tail.kernel) in replaced
            fused = self.with_tail(tail, way, taken) if tail else None
            if fused is not None and tail is not None:
                replaced |= {id(region): None, id(tail.kernel): fused}
            else:
                replaced[id(region)] = self.alone(region, way)
                self.note_readers(region, tail)
        steps = [replaced.get(id(r), r) for r in self.plan.regions]
        kept = tuple(s for s in steps if s is not None)
        return replace(self.plan, regions=kept, refusals=(*self.plan.refusals, *self.refusals))

    def node(self, region: Region) -> Node:
        return self.graph[region.nodes[0]]

    def refuse(self, contraction: Region, code: Code, **numbers: object) -> None:
        origin = self.node(contraction).origin
        why = reason(code, op=origin.op, **numbers)
        self.refusals.append(Refusal(origin.op, origin.place, why))

    # ---- which products ----------------------------------------------------------------------

    def way(self, region: Region) -> Way | None:
        """How a product is generated, or None, with a refusal if it might have been."""
        if not region.is_linear:
            return None
        node = self.node(region)
        left, right = (self.graph[name].type for name in node.inputs[:2])
        columns, depth = right.shape
        loop = self.target.loop_for(node.type.dtype, self.precision)
        rows = product(node.type.shape[:-1])
        if not isinstance(columns, int) or not isinstance(depth, int):
            self.refuse(region, Code.SIZES)
        elif loop is None or left.dtype != right.dtype:
            self.refuse(region, Code.MIXED, dtype=str(left.dtype)[6:])
        elif columns < FEWEST_COLUMNS:
            self.refuse(region, Code.NARROW, columns=columns)
        elif depth == 0 or depth % loop.multiple:
            self.refuse(region, Code.DEPTH, depth=depth)
        elif (way := self.faster(loop, rows, columns, depth)) is None:
            self.refuse(region, Code.LIBRARY_FASTER, columns=columns, depth=depth)
        elif isinstance(rows, int) and rows < way.fewest:
            self.refuse(region, Code.FEW_ROWS, rows=rows, fewest=way.fewest)
        else:
            return way
        return None

    def faster(self, loop: Loop, rows: Dim, columns: int, depth: int) -> Way | None:
        """The way that beats the library, for the rows there are or else, if more are, for many."""
        here, usual = hint(rows, self.batch), hint(rows)
        if self.policy.generate_always:
            return Way(loop, 1, here)
        for typical in (here, usual):
            fewest = loop.fewest(typical, columns, depth)
            if fewest is not None and fewest <= typical:
                return Way(loop, fewest, typical)
        return None if fewest is None else Way(loop, fewest, usual)

    # ---- with what behind them -----------------------------------------------------------------

    def with_tail(self, tail: Tail, way: Way, taken: bool) -> Region | None:
        """Both as one region, or None with the refusal."""
        contraction, kernel = tail.product, tail.kernel
        own, value = self.node(contraction), contraction.outputs[0].name
        if taken:
            self.refuse(contraction, Code.SECOND, region=kernel.name)
            return None
        try:
            if tail.program.count((*tail.program.rows, *tail.program.elements)) != own.type.numel:
                raise Unfit(Code.WALKS)
            program = fit(tail.program, value, self.columns(contraction), way.loop)
        except Unfit as unfit:
            self.refuse(contraction, unfit.code, region=kernel.name, **unfit.numbers)
            return None
        behind = [self.graph[n] for n in kernel.nodes]
        others = [n for n in behind if n.sources != own.sources]
        origins = {s for n in others if n.op != "view" for s in n.sources}
        reads = [*contraction.reads, *(r for r in kernel.reads if r != value)]
        stored = own.type.numel * own.type.dtype.itemsize
        return self.gemm(
            contraction,
            replace(
                kernel,
                name=region_name([own, *others], self.names),
                nodes=(*contraction.nodes, *kernel.nodes),
                why=reason(Code.GEMM, loop=way.loop.text, count=len(origins), fewest=way.fewest),
                program=program,
                reads=tuple(dict.fromkeys(reads)),
                bytes=as_dim(contraction.bytes + kernel.bytes - 2 * stored),
                flops=as_dim(contraction.flops + kernel.flops),
            ),
            way,
            (contraction, kernel),
        )

    def alone(self, region: Region, way: Way) -> Region:
        """A product that is stored as it is, with its bias if the library call had that."""
        own = self.node(region)
        atoms = Atoms()
        layout = atoms.layout(own.type.shape)
        access = atoms.access(region.outputs[0].name, own.type.shape, layout)
        rows, columns = tuple(flat(layout[:-1])), tuple(flat(layout[-1:]))
        store = Store(load(access), access, "element")
        program = Program(atoms.sizes, rows, (), columns, (), (store,), False)
        single = replace(
            region,
            name=region_name([own], self.names),
            why=reason(Code.GEMM_ALONE, loop=way.loop.text, fewest=way.fewest),
            program=program,
        )
        return self.gemm(region, single, way, (region,))

    def gemm(
        self, contraction: Region, region: Region, way: Way, library: tuple[Region, ...]
    ) -> Region:
        assert contraction.call is not None and region.program is not None
        own, columns = self.node(contraction), self.columns(contraction)
        left, right, bias = contraction.call.args
        program = region.program
        if bias is not None:
            program = _with_bias(program, contraction.outputs[0].name, own.name, bias.name)
        rows, depth = product(own.type.shape[:-1]), self.graph[right.name].type.shape[1]
        sizes = (rows, columns, int(str(depth)))
        return replace(
            region,
            kind="gemm",
            call=Call(LINEAR, (left, right, None)),
            program=program,
            gemm=Gemm(own.name, way.loop, *sizes, way.fewest, way.typical, library),
        )

    def columns(self, region: Region) -> int:
        return int(str(self.node(region).type.shape[-1]))

    def note_readers(self, region: Region, tail: Tail | None) -> None:
        """A kernel that reads the product, but not alone, is refused the epilogue."""
        value = region.outputs[0].name
        readers = [r for r in self.plan.regions if value in r.reads and r.program is not None]
        if tail is None and readers:
            self.refuse(region, Code.SHARED, region=readers[0].name)


def _with_bias(program: Program, value: str, raw: str, bias: str) -> Program:
    """The library adds the bias inside of its call; a generated product leaves it to the program.

    `value` is what the call gave, `raw` the product itself.
    """

    def added(expr: Expr) -> Expr | None:
        access = expr.value
        if expr.op != "load" or not isinstance(access, Access) or access.buffer != value:
            return None
        column = tuple((a, s) for a, s in access.strides if a in program.elements)
        return call("add", load(Access(raw, access.at)), load(Access(bias, Coordinate(column))))

    return replace(
        program,
        stages=tuple(replace(s, expr=substitute(s.expr, added)) for s in program.stages),
        stores=tuple(replace(s, expr=substitute(s.expr, added)) for s in program.stores),
        labels={substitute(e, added): name for e, name in program.labels.items()},
    )
