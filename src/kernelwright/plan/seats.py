"""Which products a generated kernel makes, and which kernel runs in its epilogue.

    ways   the primitives -> for each contraction how it is generated, or the reason why not
    seat   a Plan whose contractions are library calls -> the same with a `gemm` region in the place
           of each product that is generated, together with the kernel after it where that fits an
           epilogue; every kernel that keeps its own step has its reason among the refusals

The first comes before the walk of fuse.py, which leaves the seat of an epilogue free.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType

from kernelwright.accuracy import UNKNOWN, Accuracies
from kernelwright.graph import Contraction, Graph, Node, as_dim, hint
from kernelwright.plan.attention import attended
from kernelwright.plan.constraints import Constraints
from kernelwright.plan.conv_seats import ConvTime, ConvWay, conv_way, seat_convolutions
from kernelwright.plan.convolutions import ConvForm
from kernelwright.plan.dense import copied_by_library, is_copied
from kernelwright.plan.epilogue import Unfit, fit, stored
from kernelwright.plan.model import LAZY, Gemm, Plan, Region
from kernelwright.plan.names import region_name
from kernelwright.plan.operands import Form, form_of
from kernelwright.plan.policy import Policy
from kernelwright.plan.reasons import Code, Refusal, reason
from kernelwright.plan.tails import Tail, tails
from kernelwright.targets.target import Loop, Target

OVER_SAMPLES = True  # products whose depth is a free size are generated
FEWEST_COLUMNS = 8
CERTAIN = 0.8


@dataclass(frozen=True)
class Way:
    """How a product is generated: what it multiplies, by which loop, and from how many rows on.

    `fewest_frozen` is what `fewest` would be if no thin product came first: a weight that is split
    already need not be read by one.

    `typical` is the number of rows to choose a tile for.
    """

    form: Form
    loop: Loop
    fewest: int
    fewest_frozen: int
    typical: int


@dataclass(frozen=True)
class Ways:
    """The ways of the products that are generated, by name, and why others are not.

    What reads the convolutions `whole` is planned as if they were the library's.
    """

    by_name: dict[str, Way]
    convolutions: dict[str, ConvWay]
    refusals: tuple[Refusal, ...]
    whole: frozenset[str] = frozenset()

    @property
    def generated(self) -> frozenset[str]:
        return frozenset({*self.by_name, *self.convolutions})

    def close(self, policy: Policy) -> frozenset[str]:
        """Convolutions that are not faster by more than estimates err.

        They may follow a chain in channels_last: there, one of ours reads and stores another order.
        """
        if policy.generate_always:
            return frozenset()
        times = {name: way.times for name, way in self.convolutions.items()}
        return frozenset(n for n, (ours, library) in times.items() if ours > CERTAIN * library)

    @property
    def forms(self) -> dict[str, ConvForm]:
        """Of the convolutions whose readers are planned tile by tile."""
        found = {name: way.form for name, way in self.convolutions.items()}
        return {name: form for name, form in found.items() if name not in self.whole}

    def under(self, known: Constraints) -> Ways:
        """Without the convolutions that are the library's after all."""
        kept = {n: way for n, way in self.convolutions.items() if n not in known.left}
        refusals = dict.fromkeys((*self.refusals, *(why for _, why in known.library)))
        return Ways(self.by_name, kept, tuple(refusals), known.whole)

    def missed(self, plan: Plan) -> tuple[list[tuple[str, Refusal]], list[str]]:
        """The convolutions that have no tile, or a slow one, after they were to be generated.

        And those that found nobody for their epilogue: it was in vain to part what reads them.
        """
        left = {r.nodes[0] for r in plan.regions if r.kind == "contract"}
        slow = {(r.op, r.place): r for r in plan.refusals if r.why.code is Code.CONV_LIBRARY}
        gone = list[tuple[str, Refusal]]()
        for name in (n for n in self.convolutions if n in left):
            o = plan.graph[name].origin
            kind = Refusal(o.op, o.place, reason(Code.CONVOLUTION, op=o.op))
            gone.append((name, slow.get((o.op, o.place)) or kind))
        alone = [r.conv.product for r in plan.regions if r.conv and r.why.code is Code.CONV_ALONE]
        users = plan.graph.users
        return gone, [n for n in dict.fromkeys(alone) if users[n] and n not in self.whole]


def ways(
    graph: Graph,
    target: Target,
    precision: str,
    batch: int,
    policy: Policy,
    accuracies: Accuracies = MappingProxyType({}),
) -> Ways:
    """`precision` is that of float32 matrix products, `batch` the one to choose for.

    `accuracies` are those of eager's float32 convolutions by name.
    """
    found: dict[str, Way] = {}
    convolutions: dict[str, ConvWay] = {}
    refusals: list[Refusal] = []
    for node in graph if target.loops else ():
        if not isinstance(node.payload, Contraction) or node.payload.call.order:
            continue  # what the library runs in channels_last has been decided (layouts.py)
        try:
            if node.payload.is_product:
                choice = ProductChoice(graph, target, precision, batch, policy, frozenset(found))
                found[node.name] = choice.way(node)
            else:
                if policy.channels_last_always:
                    raise Unfit(Code.CONVOLUTION)
                accuracy = accuracies.get(node.name, UNKNOWN)
                way = conv_way(graph, node, target, accuracy, batch, policy)
                convolutions[node.name] = way
        except Unfit as unfit:
            why = reason(unfit.code, op=node.origin.op, **unfit.numbers)
            refusals.append(Refusal(node.origin.op, node.origin.place, why))
    return Ways(found, convolutions, tuple(refusals))


@dataclass(frozen=True)
class ProductChoice:
    """`generated` are the products that are so far."""

    graph: Graph
    target: Target
    precision: str
    batch: int
    policy: Policy
    generated: frozenset[str]

    def way(self, node: Node) -> Way:
        """How a product is generated; raises Unfit with the reason why it is not."""
        left, right = (self.graph[name].type for name in node.inputs[:2])
        loop = self.target.loop_for(node.type.dtype, self.precision)
        if loop is None or left.dtype != right.dtype:
            raise Unfit(Code.MIXED, dtype=str(left.dtype)[6:])
        form = form_of(self.graph, node, lambda form: takes(loop, form))
        if form is None:
            raise self.unreadable(node, loop)
        columns, depth = form.columns, form.depth
        across = not (form.left.along or form.right.along)
        if OVER_SAMPLES and across and not isinstance(depth, int):
            depth = hint(depth, self.batch)  # it runs over the samples, as in a weight's gradient
        if not isinstance(columns, int) or not isinstance(depth, int):
            raise Unfit(Code.SIZES)
        if columns < FEWEST_COLUMNS:
            raise Unfit(Code.NARROW, columns=columns)
        if depth == 0:
            raise Unfit(Code.NO_MATRICES)
        way = self.faster(loop, form, columns, depth, self.copied(node, form))
        if way is None:
            raise Unfit(Code.LIBRARY_FASTER, columns=columns, depth=depth)
        rows = form.all_rows
        if isinstance(rows, int) and rows < way.fewest:
            raise Unfit(Code.FEW_ROWS, rows=rows, fewest=way.fewest)
        return way

    def unreadable(self, node: Node, loop: Loop) -> Unfit:
        """The reason why the loop cannot read the operands, seen through their views."""
        form = form_of(self.graph, node, lambda form: True)
        for side in ("left", "right") if form is not None else ():
            if why := getattr(form, side).unreadable(loop.multiple):
                return Unfit(Code.STRIDES, side=side, why=why)
        return Unfit(Code.NO_MATRICES)

    def copied(self, node: Node, form: Form) -> tuple[str, ...]:
        """The matrices that only the library's product needs copied.

        What a kernel makes it stores as the library wants it, in no more time; but not a part of
        it, such as one of several projections, beside the whole.
        """
        found = []
        for side, name in zip(("left", "right"), node.inputs, strict=False):
            base = self.graph[self.graph.base(name)]
            whole = base.type.numel == self.graph[name].type.numel
            made = whole and (base.name in self.generated or base.op in LAZY)
            read = self.graph[getattr(form, side).buffer].op != "view"
            if read and not made and copied_by_library(self.graph, node, name):
                found.append(side)
        return (*found, "result") if is_copied(self.graph, node.name) else tuple(found)

    def faster(
        self, loop: Loop, form: Form, columns: int, depth: int, copies: tuple[str, ...]
    ) -> Way | None:
        """The way that beats the library, for the rows there are or else, if more are, for many."""
        here, usual = hint(form.all_rows, self.batch), hint(form.all_rows)
        if self.policy.generate_always:
            return Way(form, loop, 1, 1, here)
        each = hint(form.rows, self.batch) if form.batch != (1, 1) else None
        dense = form.left.depth == form.right.depth == 1  # as thin products want them
        for typical in (here, usual):
            fewest = loop.fewest(typical, columns, depth, each, dense, copies)
            frozen = loop.fewest(typical, columns, depth, each, False, copies)
            if fewest is not None and fewest <= typical:
                break
        return None if fewest is None else Way(form, loop, fewest, frozen or fewest, typical)


def takes(loop: Loop, form: Form) -> bool:
    """Whether the loop's kernels can read operands that lie so."""
    return not any(o.unreadable(loop.multiple) for o in (form.left, form.right))


def seat(plan: Plan, found: Ways, conv_time: ConvTime) -> Plan:
    """The plan with generated products and convolutions; `conv_time` says what the latter take."""
    return seat_convolutions(_Seating(plan, found).run(), found.convolutions, conv_time)


class _Seating:
    def __init__(self, plan: Plan, found: Ways) -> None:
        self.plan = plan
        self.graph = plan.graph
        self.ways = found.by_name
        self.refusals = [*plan.refusals, *attended(plan, found.refusals)]
        self.names = {r.name for r in plan.regions}

    def run(self) -> Plan:
        after = {id(t.product): t for t in tails(self.plan)}
        # A product and its tail become one step where the tail was: only the tail reads the
        # product, and what else the tail reads may be made in between.
        replaced: dict[int, Region | None] = {}
        for region in self.plan.regions:
            way = self.ways.get(region.nodes[0]) if region.kind == "contract" else None
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
        return replace(self.plan, regions=kept, refusals=tuple(self.refusals))

    def node(self, region: Region) -> Node:
        return self.graph[region.nodes[0]]

    def refuse(self, contraction: Region, code: Code, **numbers: object) -> None:
        origin = self.node(contraction).origin
        why = reason(code, op=origin.op, **numbers)
        self.refusals.append(Refusal(origin.op, origin.place, why))

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
            program = fit(tail.program, value, int(str(way.form.columns)), way.loop.widths)
        except Unfit as unfit:
            self.refuse(contraction, unfit.code, region=kernel.name, **unfit.numbers)
            return None
        behind = [self.graph[n] for n in kernel.nodes]
        others = [n for n in behind if n.sources != own.sources]
        origins = {s for n in others if n.op != "view" for s in n.sources}
        reads = [way.form.left.buffer, way.form.right.buffer]
        reads += [r for r in kernel.reads if r != value]
        stored = own.type.numel * own.type.dtype.itemsize
        code = Code.GEMM if origins else Code.GEMM_ALONE
        numbers = {"count": len(origins)} if origins else {}
        return self.gemm(
            contraction,
            replace(
                kernel,
                name=region_name([own, *others], self.names),
                nodes=(*contraction.nodes, *kernel.nodes),
                why=reason(code, loop=way.loop.text, **numbers, fewest=way.fewest),
                program=program,
                reads=tuple(dict.fromkeys(reads)),
                bytes=as_dim(contraction.bytes + kernel.bytes - 2 * stored),
                flops=as_dim(contraction.flops + kernel.flops),
            ),
            way,
            (contraction, kernel),
        )

    def alone(self, region: Region, way: Way) -> Region:
        """A product that is stored as it is."""
        own = self.node(region)
        program = stored(region.outputs[0].name, own.type.shape, way.form.columns)
        reads = (way.form.left.buffer, way.form.right.buffer)
        single = replace(
            region,
            name=region_name([own], self.names),
            why=reason(Code.GEMM_ALONE, loop=way.loop.text, fewest=way.fewest),
            program=program,
            reads=tuple(dict.fromkeys(reads)),
        )
        return self.gemm(region, single, way, (region,))

    def gemm(
        self, contraction: Region, region: Region, way: Way, library: tuple[Region, ...]
    ) -> Region:
        form = way.form
        return replace(
            region,
            kind="gemm",
            call=contraction.call,
            contraction=contraction.contraction,
            gemm=Gemm(
                self.node(contraction).name,
                way.loop,
                form.left,
                form.right,
                form.batch,
                form.rows,
                int(str(form.columns)),
                form.depth,
                way.fewest,
                way.fewest_frozen,
                way.typical,
                library,
            ),
        )

    def note_readers(self, region: Region, tail: Tail | None) -> None:
        """A kernel that reads the product, but not alone, is refused the epilogue."""
        value = region.outputs[0].name
        readers = [r for r in self.plan.regions if value in r.reads and r.program is not None]
        if tail is None and readers:
            self.refuse(region, Code.SHARED, region=readers[0].name)
