"""Which convolutions a generated kernel makes, and which kernels run in their epilogues.

    conv_way           a contract node -> how it is generated; raises Unfit with the reason why not
    seat_convolutions  a Plan whose convolutions are library calls -> the same with `conv` regions

A convolution that several kernels read (the statistics of a norm, then the norm itself) is either
stored by the epilogue of the first and read by the others, or made again in each: what costs less
by the target's model. Both estimates stand in the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from kernelwright.accuracy import Accuracy
from kernelwright.expr import load
from kernelwright.graph import SOURCES, Graph, Node, Shape, as_dim, hint
from kernelwright.plan.averages import averaged, pooled_first
from kernelwright.plan.convolutions import ConvForm, Extents, conv_form
from kernelwright.plan.domain import Atoms, flat
from kernelwright.plan.epilogue import Unfit
from kernelwright.plan.model import Access, Conv, Plan, Program, Region, Store
from kernelwright.plan.names import region_name
from kernelwright.plan.onward import onward
from kernelwright.plan.policy import Policy
from kernelwright.plan.reasons import Code, Reason, Refusal, reason
from kernelwright.plan.walks import Walk, walk
from kernelwright.targets.target import ConvLoop, Target

# How much slower a generated convolution must seem: either estimate may be off by a half, and by
# its products alone this one pays. One that is stored as it is saves nothing besides.
CERTAIN = 2.5
ALONE = 1.0
# Up to how much slower it may seem by its products alone, because with a pool in its epilogue a
# tile may know better; and what share of the library's time that tile may then take.
CLOSE = 1.25
SURE = 0.85


class ConvTimed(NamedTuple):
    """Microseconds of a generated convolution, and the form of the results that it makes."""

    time: float
    form: ConvForm


# What a kernel takes that walks over a convolution's result, for a batch; None: it has no tile.
ConvTime = Callable[[Walk, ConvForm, ConvLoop, int], ConvTimed | None]


@dataclass(frozen=True)
class ConvWay:
    """How a convolution is generated, whether or not it pays (`always`), and the library's time.

    The library's takes `turning` more where its operand has to be brought into its order, and
    `back` where its result has to have its channels first. It is left to the library where that is
    so many times faster as `unless` says, by the tile it gets.
    """

    form: ConvForm
    loop: ConvLoop
    batch: int
    accuracy: Accuracy
    always: bool = False
    turning: float = 0.0
    back: float = 0.0
    unless: float = CERTAIN

    @property
    def text(self) -> str:
        """The arithmetic and, where there was a choice, why."""
        chosen = self.loop.dtype == torch.float32
        return f"{self.loop.text}: {self.accuracy}" if chosen else self.loop.text

    @property
    def samples(self) -> int:
        return hint(self.form.batch, self.batch)

    @property
    def fewest(self) -> int:
        """Samples from which on the loop is as accurate as eager."""
        return hint(self.form.batch, self.accuracy.fewest)

    @property
    def flops(self) -> float:
        return self.form.flops(self.samples)

    @property
    def stored(self) -> float:
        """Bytes of the result."""
        return float(self.form.outputs(self.samples)) * self.loop.dtype.itemsize

    @property
    def read(self) -> float:
        return float(self.form.inputs(self.samples)) * self.loop.dtype.itemsize

    def time(self, more: float) -> float:
        """With an epilogue that moves so many bytes."""
        return self.loop.time(self.flops, self.read + more)

    @property
    def library_time(self) -> float:
        form = self.form
        channels = min(form.cin, form.cout) // form.groups
        deep = form.transposed and form.spatial == 3
        moved = self.read + self.stored
        return self.turning + self.loop.library_time(self.flops, moved, channels, deep)

    @property
    def times(self) -> tuple[float, float]:
        """Ours, and the library's: whoever reads its result stores another one, or less."""
        library = self.library_time + self.loop.pass_time(2 * self.stored, 0.0)
        return self.time(self.stored), library


def conv_way(
    graph: Graph, node: Node, target: Target, accuracy: Accuracy, batch: int, policy: Policy
) -> ConvWay:
    """`accuracy` is that of eager's convolution, if it is float32, `batch` the typical one."""
    form = conv_form(graph, node)
    types = {graph[name].type.dtype for name in node.inputs[:2]}
    loop = target.conv_loop_for(node.type.dtype, accuracy.owed)
    if form is None or loop is None or types != {loop.dtype}:
        raise Unfit(Code.CONVOLUTION)
    way = ConvWay(form, loop, batch, accuracy, policy.generate_always)
    rounds = loop.dtype != torch.float32 or accuracy.owed == "tf32"
    if rounds and target.convolutions:
        way = replace(way, back=target.convolutions.store_time(way.stored))
        if graph[graph.base(node.inputs[0])].op in SOURCES:
            way = replace(way, turning=target.convolutions.store_time(way.read))
    ours, library = way.times
    if ours >= CLOSE * library and not way.always:
        raise Unfit(Code.CONV_LIBRARY, ours=ours, library=library)
    return way if ours < library else replace(way, unless=SURE)


def seat_convolutions(plan: Plan, ways: dict[str, ConvWay], conv_time: ConvTime) -> Plan:
    """The plan with generated convolutions."""
    return _Seating(plan, ways, conv_time).run() if ways else plan


class _Seating:
    def __init__(self, plan: Plan, ways: dict[str, ConvWay], conv_time: ConvTime) -> None:
        self.plan, self.graph = plan, plan.graph
        self.ways, self.conv_time = ways, conv_time
        self.refusals = [*plan.refusals]
        self.names = {r.name for r in plan.regions}
        self.regions = list(plan.regions)

    def run(self) -> Plan:
        for region in self.plan.regions:
            way = self.ways.get(region.nodes[0]) if region.kind == "contract" else None
            if way is not None:
                self.seat(region, way)
        return replace(self.plan, regions=tuple(self.regions), refusals=tuple(self.refusals))

    # ---- who reads it ------------------------------------------------------------------------

    def seat(self, contraction: Region, way: ConvWay) -> None:
        value = contraction.outputs[0].name
        readers = [r for r in self.regions if any(self.graph.base(n) == value for n in r.reads)]
        returned = value in {self.graph.base(name) for name in self.graph.results}
        fitting = self.fitting(contraction, readers, way)
        if not returned and readers and len(fitting) == len(readers):
            place = self.one if len(readers) == 1 else self.several
            if place(contraction, readers, way):
                return
        if fitting and fitting[0] is readers[0] and self.reads_all(contraction, readers[0], way):
            self.stored_by_first(contraction, readers, way)
        else:
            self.alone(contraction, way)

    def fitting(self, contraction: Region, readers: list[Region], way: ConvWay) -> list[Region]:
        """The kernels whose programs can run in an epilogue; others are refused with the reason."""
        found = []
        for reader in readers:
            if reader.program is None:
                continue
            try:
                self.time(contraction, reader, way)
                found.append(reader)
            except Unfit as unfit:
                self.refuse(contraction, unfit.code, region=reader.name, **unfit.numbers)
        return found

    def time(self, contraction: Region, reader: Region, way: ConvWay) -> float:
        return self.timed(contraction, reader, way).time

    def timed(self, contraction: Region, reader: Region, way: ConvWay) -> ConvTimed:
        """Of the convolution with the reader in its epilogue, if it can run there."""
        value = contraction.outputs[0].name
        if reader.gemm is not None or reader.conv is not None:
            raise Unfit(Code.SECOND)
        if reader.program is None or value not in reader.reads:
            raise Unfit(Code.WALKS)
        walked = walk(reader.program, value, way.form, self.graph)
        found = self.conv_time(walked, way.form, way.loop, way.samples)
        if found is None:
            raise Unfit(Code.TILE if walked.pool is None else Code.OVERLAP)
        return found

    def walked(self, contraction: Region, reader: Region, way: ConvWay) -> Walk:
        assert reader.program is not None
        return walk(reader.program, contraction.outputs[0].name, way.form, self.graph)

    def waits(self, contraction: Region, reader: Region) -> bool:
        """Whether its rows are made of another tensor of the result's size too."""
        assert reader.program is not None
        others = reader.program.as_large_as(self.read(contraction, reader))
        return bool(reader.program.stages and others)

    def time_if_it_fits(self, contraction: Region, reader: Region, way: ConvWay) -> float:
        try:
            return self.time(contraction, reader, way)
        except Unfit:
            return math.inf

    def refuse(self, contraction: Region, code: Code, **numbers: object) -> None:
        origin = self.node(contraction).origin
        why = reason(code, op=origin.op, **numbers)
        self.refusals.append(Refusal(origin.op, origin.place, why))

    def node(self, region: Region) -> Node:
        return self.graph[region.nodes[0]]

    # ---- the regions -------------------------------------------------------------------------

    def one(self, contraction: Region, readers: list[Region], way: ConvWay) -> bool:
        """In the epilogue, unless the stored result costs less.

        It may where windows overlap, or several channels are read, for which tiles have to be as
        they else are not, or where rows are made of another tensor as well: an epilogue has few
        threads to wait for that.
        """
        (reader,) = readers
        ours, form = self.timed(contraction, reader, way)
        library = way.library_time + self.after(reader, way)
        count = self.operators(contraction, reader)
        code = Code.CONV if count else Code.CONV_ALONE
        more: dict[str, object] = {"count": count} if count else {}
        walked = self.walked(contraction, reader, way)
        overlaps, beside = walked.pool is not None, not walked.has_own
        if overlaps or beside or self.waits(contraction, reader):
            once = self.stored_time(contraction, way) + self.after(reader, way)
            if once < ours:
                apart = Code.APART_CHANNELS if beside else Code.WAITS
                apart = Code.APART if overlaps else apart
                self.refuse(contraction, apart, region=reader.name, ours=ours, once=once)
                self.alone(contraction, way)
                return True
        if overlaps or beside:
            code = Code.CONV_OVERLAP if overlaps else Code.CONV_CHANNELS
            more = {"count": count, "once": once}
        if form.mean is not None:
            code = Code.CONV_MEAN
            more = {"count": count, "window": form.by(form.kernel), "stride": form.by(form.stride)}
            if not form.mean.transposed:
                code = Code.CONV_FOLDED
                more["first"] = self.pooled_first_time(form.mean.window, way)
            if self.onward(contraction, reader, way, ours):
                return True
        if not self.left(contraction, way, ours, library):
            why = reason(code, loop=way.text, ours=ours, library=library, **more)
            made = self.conv(contraction, reader, way, why, (contraction, reader))
            self.put({id(contraction): [], id(reader): [made]})
        return True

    def onward(self, contraction: Region, first: Region, way: ConvWay, ours: float) -> bool:
        """With the only kernel that reads the means, if that costs less than to store them.

        `ours` is without it. Whether the convolution has its place then.
        """
        stored, dtype = first.outputs[0].name, first.outputs[0].dtype
        readers = [r for r in self.regions if any(self.graph.base(n) == stored for n in r.reads)]
        returned = stored in {self.graph.base(name) for name in self.graph.results}
        rounded = dtype != way.loop.dtype  # on its way through memory
        if len(first.outputs) > 1 or returned or rounded or len(readers) != 1:
            return False
        (later,) = readers
        means = averaged(self.walked(contraction, first, way), way.form)
        if means is None or later.program is None or later.gemm is not None or later.conv:
            return False
        form = means[1]
        once = ours + self.after(later, way)
        try:
            program = onward(*means, later.program, self.graph)
            both = self.followed(first, later, program, stored)
            mean_way = replace(way, form=form)
            time = self.timed(contraction, both, mean_way).time
        except Unfit:
            return False
        library = way.library_time + self.after(first, way) + self.after(later, way)
        if time >= once:
            return False
        if self.left(contraction, way, time, library):
            return True
        why = reason(
            Code.CONV_ONWARD,
            loop=way.text,
            count=self.operators(contraction, both),
            window=form.by(form.kernel),
            stride=form.by(form.stride),
            ours=time,
            once=once,
            library=library,
        )
        made = self.conv(contraction, both, mean_way, why, (contraction, first, later))
        self.put({id(contraction): [], id(first): [], id(later): [made]})
        origins = [self.graph[name].origin for name in later.nodes]
        joined = [(Code.ROWS_DIFFER, o.op, o.place) for o in origins]  # after all
        self.refusals = [r for r in self.refusals if (r.why.code, r.op, r.place) not in joined]
        return True

    def followed(self, first: Region, later: Region, program: Program, stored: str) -> Region:
        """Both kernels as one."""
        node = self.graph[stored]
        between = node.type.numel * node.type.dtype.itemsize
        return replace(
            later,
            program=program,
            nodes=(*first.nodes, *later.nodes),
            reads=tuple(dict.fromkeys(n for n in (*first.reads, *later.reads) if n != stored)),
            bytes=as_dim(first.bytes + later.bytes - 2 * between),
            flops=as_dim(first.flops + later.flops),
        )

    def several(self, contraction: Region, readers: list[Region], way: ConvWay) -> bool:
        """Made again in each, if that costs less than storing it and if nothing is in between."""
        again, once, library = self.estimates(contraction, readers, way)
        if once <= again or not self.can_be_together(readers):
            return False
        passes = []
        for number, reader in enumerate(readers, 1):
            last = number == len(readers)
            why = reason(
                Code.CONV_AGAIN,
                loop=way.text,
                count=self.operators(contraction, reader),
                number=number,
                passes=len(readers),
                again=again,
                once=once,
                library=library,
            )
            steps = (contraction, *readers) if last else ()
            passes.append(self.conv(contraction, reader, way, why, steps))
        gone: dict[int, list[Region]] = {id(r): [] for r in (contraction, *readers)}
        self.put(gone | {id(readers[-1]): passes})
        return True

    def left(self, contraction: Region, way: ConvWay, ours: float, library: float) -> bool:
        """Whether the library is so much faster; then nothing changes, and the reason is kept."""
        if way.always or ours < way.unless * library:
            return False
        self.refuse(contraction, Code.CONV_LIBRARY, ours=ours, library=library)
        return True

    def estimates(
        self, contraction: Region, readers: list[Region], way: ConvWay
    ) -> tuple[float, float, float]:
        """Microseconds: made again in each kernel, stored by the first, made by the library.

        A kernel that has no tile cannot make it again, and one that does not see every element
        once cannot store it.
        """
        later = sum(self.after(r, way) for r in readers[1:])
        again = sum(self.time_if_it_fits(contraction, r, way) for r in readers)
        if self.reads_all(contraction, readers[0], way):
            storing = self.storing(contraction, readers[0])
            once = self.time_if_it_fits(contraction, storing, way) + later
        else:
            once = self.stored_time(contraction, way) + self.after(readers[0], way) + later
        library = way.library_time + self.after(readers[0], way) + later
        return again, once, library

    def after(self, reader: Region, way: ConvWay) -> float:
        """Of a kernel that reads the convolution from memory."""
        moved, operations = (float(hint(n, way.batch)) for n in (reader.bytes, reader.flops))
        return way.loop.pass_time(moved, operations)

    def can_be_together(self, readers: list[Region]) -> bool:
        """Whether the first kernels can wait for the last: nobody in between needs them."""
        places = [i for i, r in enumerate(self.regions) if any(r is x for x in readers)]
        made = {b.name for r in readers[:-1] for b in r.outputs}
        between = self.regions[places[0] : places[-1]]
        others = [r for r in between if not any(r is x for x in readers)]
        return not any(self.graph.base(n) in made for r in others for n in r.reads)

    def reads_all(self, contraction: Region, reader: Region, way: ConvWay) -> bool:
        """Whether it walks over every element once, and so can store them: a pool may not."""
        assert reader.program is not None
        walked = self.walked(contraction, reader, way)
        if not walked.has_own or walked.pool is not None:
            return False
        elements = reader.program.count(tuple(self.read(contraction, reader).atoms))
        return as_dim(elements) == self.node(contraction).type.numel

    def read(self, contraction: Region, reader: Region) -> Access:
        assert reader.program is not None
        value = contraction.outputs[0].name
        return next(a for a in reader.program.loads if a.buffer == value)

    def stored_by_first(self, contraction: Region, readers: list[Region], way: ConvWay) -> None:
        """The first kernel's epilogue stores the result besides; the others read it."""
        first = readers[0]
        again, once, library = self.estimates(contraction, readers, way)
        if self.left(contraction, way, once, library):
            return
        why = reason(
            Code.CONV_STORED,
            loop=way.text,
            count=self.operators(contraction, first),
            passes=len(readers) - 1,
            again=again,
            once=once,
            library=library,
        )
        storing = self.storing(contraction, first)
        made = self.conv(contraction, storing, way, why, (contraction, first))
        self.put({id(contraction): [], id(first): [made]})

    def storing(self, contraction: Region, first: Region) -> Region:
        """The kernel, if it stores the convolution besides."""
        value, read = contraction.outputs[0], self.read(contraction, first)
        assert first.program is not None
        program = replace(
            first.program,
            stores=(*first.program.stores, Store(load(read), read, "element")),
        )
        return replace(
            first,
            program=program,
            outputs=(*first.outputs, value),
            bytes=as_dim(first.bytes + self.node(contraction).type.numel * value.dtype.itemsize),
        )

    def stored_time(self, contraction: Region, way: ConvWay) -> float:
        """Of the convolution stored as it is; infinite where it has no tile."""
        value, shape = contraction.outputs[0].name, self.node(contraction).type.shape
        return self.bare_time(value, shape, way.form, way)

    def bare_time(self, value: str, shape: Shape, form: ConvForm, way: ConvWay) -> float:
        walked = walk(_stored(value, shape), value, form, self.graph)
        found = self.conv_time(walked, form, way.loop, way.samples)
        return math.inf if found is None else found.time

    def pooled_first_time(self, window: Extents, way: ConvWay) -> float:
        """With an average pool of the input in the place of one of the results (rules/spaces.py).

        A kernel that makes the input would average it besides.
        """
        form = pooled_first(way.form, window)
        elements = form.inputs(way.samples)
        moved = way.read + float(elements) * way.loop.dtype.itemsize
        pooling = way.loop.pass_time(moved, float(elements * math.prod(window)))
        inside = [r for r in self.regions if form.input in {b.name for b in r.outputs}]
        if any(r.kind == "rowwise" for r in inside):
            pooling = 0.0
        shape = (form.batch, form.cout, *form.out_size)
        return pooling + self.bare_time(form.input, shape, form, way)

    def alone(self, contraction: Region, way: ConvWay) -> None:
        """A convolution that is stored as it is, its channels first."""
        own = self.node(contraction)
        ours = self.stored_time(contraction, way)
        if ours == math.inf:
            self.refuse(contraction, Code.CONVOLUTION)
            return
        library = way.library_time + way.back
        if self.left(contraction, replace(way, unless=ALONE), ours, library):
            return
        why = reason(Code.CONV_ALONE, loop=way.text, ours=ours, library=library)
        stored = as_dim(2 * own.type.numel * own.type.dtype.itemsize)
        program = _stored(contraction.outputs[0].name, own.type.shape)
        single = replace(contraction, program=program, nodes=(), bytes=stored, flops=0)
        self.put({id(contraction): [self.conv(contraction, single, way, why, (contraction,))]})

    def conv(
        self,
        contraction: Region,
        reader: Region,
        way: ConvWay,
        why: Reason,
        library: tuple[Region, ...],
    ) -> Region:
        own, value = self.node(contraction), contraction.outputs[0].name
        others = [n for n in map(self.graph.__getitem__, reader.nodes) if n.sources != own.sources]
        reads = [way.form.input, way.form.weight, *(r for r in reader.reads if r != value)]
        stored = own.type.numel * own.type.dtype.itemsize
        return replace(
            reader,
            name=region_name([own, *others], self.names),
            kind="conv",
            nodes=(*contraction.nodes, *reader.nodes),
            why=why,
            call=contraction.call,
            contraction=contraction.contraction,
            reads=tuple(dict.fromkeys(reads)),
            bytes=as_dim(contraction.bytes + reader.bytes - 2 * stored),
            flops=as_dim(contraction.flops + reader.flops),
            conv=Conv(own.name, way.loop, way.form, way.samples, way.fewest, library),
        )

    def operators(self, contraction: Region, reader: Region) -> int:
        own = self.node(contraction)
        behind = [self.graph[n] for n in reader.nodes]
        others = [n for n in behind if n.sources != own.sources and n.op != "view"]
        return len({s for n in others for s in n.sources})

    def put(self, changed: dict[int, list[Region]]) -> None:
        self.regions = [r for old in self.regions for r in changed.get(id(old), [old])]


def _stored(value: str, shape: Shape) -> Program:
    """What stores a convolution as it is."""
    atoms = Atoms()
    layout = atoms.layout(shape)
    access = atoms.access(value, shape, layout)
    store = Store(load(access), access, "element")
    return Program(atoms.sizes, (), (), tuple(flat(layout)), (), (store,), False)


def folded(plan: Plan) -> frozenset[str]:
    """The captured convolutions whose average pool is better behind them, in their weights.

    It is no worse than a pool of the input by the estimates.
    """
    told = [(r, dict(r.why.numbers)) for r in plan.regions if r.why.code is Code.CONV_FOLDED]
    kept = [r for r, own in told if float(str(own["ours"])) <= float(str(own["first"]))]
    return frozenset(s for r in kept if r.conv for s in plan.graph[r.conv.product].sources)
