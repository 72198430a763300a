"""The walk that turns a primitive graph into regions.

Nodes are taken in running order. Contractions and opaque calls are steps of their own. A
map whose operands are all in memory stays lazy: whoever needs it computes it on the way; so does a
cat, whose parts are in memory or lazy themselves. A
reduction opens a region, or joins the one that computes its operand; a map over something that a
region computes joins that region. What cannot join says why, and its operands are then stored.

A lazy value that must be in memory (a call reads it, or it is returned), or that is better stored
than computed again (sharing.py, and under overlapping windows overlaps.py), opens a region where it
is defined, and what follows may join that. Where it hangs on a generated product it is left to the
epilogue of that, which has no whole rows: then reductions stay out of its region.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from types import MappingProxyType

import torch

from kernelwright.dropout import is_mask
from kernelwright.graph import SOURCES, Call, Contraction, Dim, Graph, Node, hint
from kernelwright.interpret import draws
from kernelwright.plan import cost
from kernelwright.plan.convolutions import ConvForm
from kernelwright.plan.domain import Misaligned
from kernelwright.plan.epilogue import Unfit, walks_rows
from kernelwright.plan.limits import Limits
from kernelwright.plan.model import CALLS, LAZY, Buffer, Plan, Region
from kernelwright.plan.names import region_name
from kernelwright.plan.overlaps import overlaps
from kernelwright.plan.reasons import Code, Reason, Refusal, Shared, reason
from kernelwright.plan.region import Builder, Refused, Tangled
from kernelwright.plan.sharing import Unit, share
from kernelwright.plan.tiles import awaits_rows, check_parts
from kernelwright.plan.walks import walk
from kernelwright.walk import Opened, fold, reach

# What has so many times fewer elements than what it is made for is stored without a thought.
FEW = 16
# A value that is in memory anyway can be read there: these refusals to compute on where it was
# made are no loss that anybody has to hear of.
UNTOLD = (Code.CYCLE, Code.BROADCASTS, Code.WITH_BIAS, Code.TURNED)
Step = Builder | str


def plan(
    graph: Graph,
    limits: Limits,
    generated: frozenset[str] = frozenset(),
    batch: int = 1024,
    convolutions: Mapping[str, ConvForm] = MappingProxyType({}),
    apart: frozenset[str] = frozenset(),
) -> Plan:
    """Regions in running order, with the reasons for what was and was not fused.

    `generated` names the contractions that a kernel of ours makes, which then has an epilogue, and
    `convolutions` are the forms of those among them; `batch` is the one to count bytes for. The
    maps `apart` are stored by kernels of their own, which no reduction joins.
    """
    needed = _in_memory(graph) | apart
    lazy = _Walk(graph, limits, generated, needed, convolutions, apart)
    lazy.run()
    needed |= lazy.late
    units = lazy.units(batch)
    shared = share(graph, units, lazy.homes, lazy.seat, limits, batch, convolutions)
    shared += overlaps(graph, lazy.homes, {s.value for s in shared if s.stored}, limits, batch)
    stored = frozenset(s.value for s in shared if s.stored)
    if stored or lazy.late:
        lazy = _Walk(graph, limits, generated, needed | stored, convolutions, apart)
        lazy.run()
    return lazy.plan(shared)


def _in_memory(graph: Graph) -> frozenset[str]:
    """The maps and cats that a call reads, or that are returned."""
    read = [name for node in graph if node.op in CALLS for name in node.inputs]
    bases = (graph.base(name) for name in (*read, *graph.results))
    return frozenset(name for name in bases if graph[name].op in LAZY)


def _draws(node: Node) -> bool:
    call = node.payload
    return isinstance(call, Call) and call.target != "getitem" and draws(call)


class _Walk:
    """One walk, in which the lazy values `stored` are stored, some `apart` from all others.

    `homes` says which region computes a value, `anchors` which of these could be computed anywhere,
    `late` what turned out to be needed in memory on the way.
    """

    def __init__(
        self,
        graph: Graph,
        limits: Limits,
        generated: frozenset[str],
        stored: frozenset[str],
        convolutions: Mapping[str, ConvForm],
        apart: frozenset[str],
    ) -> None:
        self.graph = graph
        self.apart = apart
        self.convolutions = convolutions
        self.limits = limits
        self.generated = generated
        self.stored = stored
        self.homes: dict[str, Builder] = {}
        self.anchors: set[str] = set()
        self.late: set[str] = set()
        self.builders: dict[Builder, int] = {}
        self.refusals: list[Refusal] = []
        self.known_ends: dict[tuple[str, ...], list[str]] = {}
        self.known_reads: dict[Step, list[str]] = {}
        self.known_upstream: dict[Step, frozenset[Step]] = {}
        drawing = [n.name for n in graph if n.op == "opaque" and _draws(n)]
        self.drawn_before = dict(pairwise(reversed(drawing)))

    def run(self) -> None:
        for node in self.graph:
            if node.op in CALLS:
                for name in node.inputs:
                    self.require(name)
            elif node.op == "map":
                self.offer_map(node)
            elif node.op == "reduce":
                self.offer_reduce(node)
            elif node.name in self.stored:
                self.store(node)
        for name in self.graph.results:
            self.require(name)

    def plan(self, shared: tuple[Shared, ...]) -> Plan:
        return Plan(self.graph, tuple(self.finish()), tuple(self.refusals), shared)

    # ---- where a node goes -------------------------------------------------------------------

    def offer_map(self, node: Node) -> None:
        if node.name in self.apart:
            self.store(node)
            return
        windows = [] if node.name in self.stored else self.windows(node.name)
        for region in self.candidates(node.inputs):
            if windows and not region.nests(node, windows):
                continue  # the windows compute it from what the region has reduced
            if self.admit(node, region):
                return
        if node.name in self.stored:
            self.store(node)

    def offer_reduce(self, node: Node) -> None:
        bound = self.candidates(node.inputs)
        around = self.candidates(node.inputs, anchors=True)
        for region in dict.fromkeys([*bound, *around, *self.siblings(node.inputs[0])]):
            if self.admit(node, region, untold=() if region in bound else UNTOLD):
                return
        self.bring_down(node.inputs[0])
        region = self.open(node)
        region.again = self.again(node.inputs[0])
        region.start(node.inputs[0])
        region.join_reduce(node)
        self.find_barriers(node, region)
        self.settle(node, region)

    def bring_down(self, source: str) -> None:
        """Leave to a reduction what nobody else reads, if what that is made of has other readers.

        So a second norm reads what the first one has normalised, not a copy with the squares of it.
        """
        alone: list[str] = []
        name = source
        while len(self.graph.users[name]) == 1 and len(self.graph[name].inputs) == 1:
            if self.graph[name].op == "map" and self.is_made_on(name):
                alone.append(name)
            elif self.graph[name].op != "view":
                break
            name = self.graph[name].inputs[0]
        shared = len(self.graph.users[name]) > 1 and self.graph.base(name) in self.homes
        as_large = self.graph[name].type.numel == self.graph[source].type.numel
        for each in alone if shared and as_large else []:
            region = self.homes.pop(each)
            region.withdraw(self.graph[each])
            self.known_ends.clear()
            self.forget(region)

    def is_made_on(self, name: str) -> bool:
        """Whether a map is computed where its operand is, and not for memory."""
        home = self.homes.get(name)
        return home is not None and name not in self.anchors and name not in home.wanted

    def again(self, source: str) -> frozenset[str]:
        """Maps that windows compute again from a region's reductions instead of having them stored.

        So a norm in front of a pool leaves its statistics and no normalised elements. What is made
        of statistics alone is stored in their place.
        """
        if self.graph[source].op != "window":
            return frozenset()
        elements = hint(self.graph[self.graph[source].inputs[0]].type.numel)

        def is_map(name: str) -> bool:
            return self.graph[name].op == "map" and name in self.homes

        def kept(name: str) -> bool:
            few = hint(self.graph[name].type.numel) * FEW <= elements
            return few or name in self.anchors or name in self.homes[name].wanted

        def below(name: str) -> tuple[str, ...]:
            node = self.graph[name]
            end = node.op not in (*LAZY, "view") or (is_map(name) and kept(name))
            return () if end else node.inputs

        return frozenset(n for n in reach([source], below) if is_map(n) and not kept(n))

    def windows(self, name: str) -> list[str]:
        """The windows that look at a value, if nothing else needs it."""

        def above(value: str) -> list[str]:
            on_the_way = self.graph[value].op in (*LAZY, "view") and value not in self.stored
            return self.graph.users[value] if on_the_way and not is_window(value) else []

        def is_window(value: str) -> bool:
            return self.graph[value].op == "window"

        reached = reach([name], above)
        ends = [v for v in reached if not above(v)]
        returned = any(v in self.graph.results for v in reached)
        return ends if not returned and all(map(is_window, ends)) else []

    def store(self, node: Node) -> None:
        """Compute a lazy value here and now: with others like it, or in a region of its own."""
        self.anchors.add(node.name)
        product = self.seat(node.name, self.stored)
        if product is None and node.op == "map" and node.name not in self.apart:
            around = self.candidates(node.inputs, anchors=True)
            for region in (r for r in around if node.name not in r.refused):
                if self.admit(node, region, untold=tuple(Code)):
                    return
        region = self.open(node)
        region.place(node.name)
        self.find_barriers(node, region)
        self.settle(node, region)
        if product is not None and walks_rows(
            region.draft(), product, self.graph[product].type.shape[-1]
        ):
            region.closed = Code.EPILOGUE
        elif node.name in self.apart:
            region.closed = Code.TURNED
            self.require(node.name)
        elif self.is_bias(node):
            region.closed = Code.WITH_BIAS

    def admit(self, node: Node, region: Builder, untold: tuple[Code, ...] = ()) -> bool:
        try:
            self.check_cycle(node, region)
            (region.join_map if node.op == "map" else region.join_reduce)(node)
            self.find_barriers(node, region)
            self.check_cycle(node, region)
            self.check_tiles(node, region)
        except Refused as refused:
            region.withdraw(node)
            if refused.why.code is Code.STATISTICS:
                return False  # on the way to another reduction it may yet be computed here
            return self.refuse(node, region, refused.why, untold)
        except Misaligned:
            region.withdraw(node)
            why = reason(Code.MISALIGNED, op=node.origin.op, region=region.name)
            return self.refuse(node, region, why, untold)
        self.settle(node, region)
        return True

    def refuse(self, node: Node, region: Builder, why: Reason, untold: tuple[Code, ...]) -> bool:
        region.refused.add(node.name)
        if why.code not in untold:
            self.refusals.append(Refusal(node.origin.op, node.origin.place, why))
        return False

    def find_barriers(self, node: Node, region: Builder) -> None:
        """Reshapes below the node that no splitting of axes explains are read from memory.

        So is what would be computed at too many places.
        """
        while True:
            try:
                region.probe(node)
                return
            except Misaligned as misaligned:
                if misaligned.view is None:
                    raise
                region.bar(misaligned.view)
            except Tangled as tangled:
                self.require(tangled.value)
                region.forget_places()

    def settle(self, node: Node, region: Builder) -> None:
        self.homes[node.name] = region
        self.known_ends.clear()
        self.forget(region)
        for name in self.externals(node.inputs, region):
            self.require(name)

    def require(self, name: str) -> None:
        """The value (or what it is a view of) must be in memory."""
        name = self.graph.base(name)
        node = self.graph[name]
        if name not in self.homes and node.op in LAZY:
            self.late.add(name)
            self.known_reads.clear()
            self.known_upstream.clear()
            self.store(node)
        if name in self.homes:
            self.homes[name].wanted[name] = None

    def open(self, node: Node) -> Builder:
        region = Builder(self.graph, self.limits, node.origin.op, homes=self.homes)
        self.builders[region] = len(self.builders)
        return region

    # ---- products ----------------------------------------------------------------------------

    def seat(self, name: str, stored: frozenset[str]) -> str | None:
        """The generated product that only this value needs, while these values are stored."""

        def below(value: str) -> tuple[str, ...]:
            node = self.graph[value]
            lazy = node.op == "view" or (node.op in LAZY and value not in (stored - {name}))
            return node.inputs if lazy and (value == name or value not in self.homes) else ()

        def above(value: str) -> list[str]:
            lazy = self.graph[value].op in (*LAZY, "view")
            through = lazy and value != name and value not in stored
            return self.graph.users[value] if through else []

        for product in reach([name], below):
            if product in self.generated and product not in self.graph.results:
                reached = reach(self.graph.users[product], above)
                ends = [v for v in reached if not above(v)]
                if ends == [name] and self.graph[product].type.numel == self.graph[name].type.numel:
                    return product
        return None

    def check_tiles(self, node: Node, region: Builder) -> None:
        """What runs over more of a generated convolution than a tile holds leaves parts of rows.

        Nothing there may wait for whole ones: it reads them from memory, and the convolution's
        result again, or that is made again.
        """
        read = self.externals(self.operands(region), region) if region.reduces else []
        found = [name for name in read if name in self.convolutions]
        program = region.draft() if found else None
        if program is None or not awaits_rows(program):
            return
        for value in found:
            try:
                walked = walk(program, value, self.convolutions[value], self.graph)
            except Unfit:
                continue
            try:
                check_parts(walked)
            except Unfit:
                op = node.origin.op
                raise Refused(reason(Code.STATISTICS, op=op, region=region.name)) from None

    def is_bias(self, node: Node) -> bool:
        """Whether this only adds the bias of a contraction, which the library's call can."""
        if node.op != "map" or len(node.inputs) != 2:
            return False
        product = self.graph[node.inputs[0]]
        same = product.op == "contract" and product.sources == node.sources
        return same and self.graph.users[product.name] == [node.name]

    # ---- who depends on whom -----------------------------------------------------------------

    def candidates(self, names: tuple[str, ...], anchors: bool = False) -> list[Builder]:
        """The regions that compute something these values are made of, the latest first.

        Not those where it is an anchor, which can be read from memory, unless these are asked for.
        """
        bound = [n for n in reach(names, self.made_of) if anchors or n not in self.anchors]
        found = {self.homes[n] for n in bound if n in self.homes}
        return sorted(found, key=self.builders.__getitem__, reverse=True)

    def siblings(self, source: str) -> list[Builder]:
        """Regions with a reduction that reads this value, or a part of it, or one of its shape.

        The last only where everything becomes one number: no row of either has to wait.
        """
        made = set(reach([source], self.made_of))
        return [
            r
            for r in reversed(self.builders)
            if r.reduces and (made & r.seen.keys() or r.alongside(source) is not None)
        ]

    def made_of(self, name: str) -> tuple[str, ...]:
        """What is read when this value is computed on the way."""
        return self.graph[name].inputs if self.is_on_the_way(name) else ()

    def is_on_the_way(self, name: str) -> bool:
        return self.graph[name].op in (*LAZY, "view") and name not in self.homes

    def externals(self, names: tuple[str, ...], region: Builder) -> list[str]:
        """What the region reads from memory when it computes these values."""
        if not region.barriers and not region.again:
            return [n for n in self.ends(names) if self.homes.get(n) is not region]

        def pulled(name: str) -> bool:
            return region.passes(name) and name not in region.barriers

        reached = reach(names, lambda name: self.graph[name].inputs if pulled(name) else ())
        read = [n for n in reached if not pulled(n) and self.homes.get(n) is not region]
        return list(dict.fromkeys(self.graph.base(n) for n in read))

    def ends(self, names: tuple[str, ...]) -> list[str]:
        """What these values are computed from; many regions may ask it of the same ones."""
        if names not in self.known_ends:
            reached = reach(names, self.made_of)
            self.known_ends[names] = [n for n in reached if not self.is_on_the_way(n)]
        return self.known_ends[names]

    def unit(self, name: str) -> Step:
        return self.homes.get(name, name)

    def reads(self, unit: Step) -> list[str]:
        if unit not in self.known_reads:
            self.known_reads[unit] = self.find_reads(unit)
        return self.known_reads[unit]

    def find_reads(self, unit: Step) -> list[str]:
        if isinstance(unit, Builder):
            return self.externals(self.operands(unit), unit)
        node = self.graph[unit]
        if node.op in SOURCES:
            return []
        # A mask reads nothing, but its random numbers have their turn.
        turn = [self.drawn_before[unit]] if unit in self.drawn_before else []
        return [*(self.graph.base(i) for i in node.inputs), *turn]

    def operands(self, region: Builder) -> tuple[str, ...]:
        names = [i for n in region.placed for i in self.graph[n].inputs]
        return tuple(dict.fromkeys(names))

    def check_cycle(self, node: Node, region: Builder) -> None:
        for name in self.externals(node.inputs, region):
            if region in self.upstream(self.unit(name)):
                raise Refused(reason(Code.CYCLE, op=node.origin.op, region=region.name))

    def upstream(self, unit: Step) -> frozenset[Step]:
        """The step itself and all that it waits for."""

        def opened(step: Step) -> Opened[Step, frozenset[Step]]:
            read = [self.unit(name) for name in self.reads(step)]
            return read, lambda above: frozenset({step}).union(*above)

        return fold(unit, opened, self.known_upstream)

    def forget(self, region: Builder) -> None:
        """The region reads more from now on, and so those wait longer that wait for it."""
        self.known_reads.pop(region, None)
        for step in [u for u, above in self.known_upstream.items() if region in above]:
            del self.known_upstream[step]

    def units(self, batch: int) -> list[Unit]:
        """The kernels as sharing.py sees them, in running order."""
        position = {node.name: i for i, node in enumerate(self.graph)}
        regions = [r for r in self.builders if r.wanted]
        regions.sort(key=lambda r: min(position[n] for n in r.placed))
        return [
            Unit(
                self.operands(r),
                frozenset(r.placed),
                hint(r.atoms.size(r.domain), batch),
                r.closed is None,
                frozenset(r.barriers),
                r.again,
            )
            for r in regions
        ]

    # ---- the finished regions ----------------------------------------------------------------

    def finish(self) -> list[Region]:
        """Steps in running order: each after everything that it reads.

        A library call has the name of its value, which no kernel has.
        """
        names = {node.name for node in self.graph if node.op in CALLS}
        steps: list[Region] = []
        done: dict[Step, None] = {}

        def made(unit: Step) -> Opened[Step, None]:
            return [self.unit(name) for name in self.reads(unit)], lambda _: None

        self.known_reads.clear()
        for node in self.graph:
            if node.op in CALLS or node.name in self.homes:
                fold(self.unit(node.name), made, done)
        for unit in done:
            step = self.step(unit, names)
            if step is not None:
                steps.append(step)
        return steps

    def step(self, unit: Step, names: set[str]) -> Region | None:
        if isinstance(unit, Builder):
            return self.kernel(unit, names) if unit.wanted else None
        node = self.graph[unit]
        return None if node.op in SOURCES else self.library_call(node)

    def kernel(self, region: Builder, names: set[str]) -> Region:
        program = region.program()
        nodes = self.inside(region)
        outputs = tuple(
            Buffer(w, self.graph[w].type.shape, self.graph[w].type.dtype) for w in region.wanted
        )
        return Region(
            name=region_name([self.graph[n] for n in nodes], names),
            kind="rowwise",
            nodes=nodes,
            why=reason(
                Code.TAIL if program.stages else Code.POINTWISE, count=len(self.origins(nodes))
            ),
            program=program,
            outputs=outputs,
            reads=tuple(dict.fromkeys(a.buffer for a in program.loads)),
            bytes=cost.program_bytes(self.graph, program),
            flops=program.flops(),
        )

    def origins(self, nodes: tuple[str, ...]) -> set[str]:
        """The captured operators behind these nodes, views not counted."""
        return {s for n in nodes if self.graph[n].op != "view" for s in self.graph[n].sources}

    def inside(self, region: Builder) -> tuple[str, ...]:
        """Every node that the kernel carries out, lazy ones included, in running order."""

        def below(name: str) -> tuple[str, ...]:
            return self.graph[name].inputs if carried_out(name) else ()

        def carried_out(name: str) -> bool:
            own = self.homes.get(name) is region
            return (own or region.passes(name)) and name not in region.barriers

        found = {n for n in reach(region.placed, below) if carried_out(n)}
        return tuple(n.name for n in self.graph if n.name in found)

    def library_call(self, node: Node) -> Region:
        of = node.payload if isinstance(node.payload, Contraction) else None
        call = of.call if of is not None else node.payload
        assert isinstance(call, Call)
        flops: Dim = of.flops if of is not None else 0
        size = cost.call_bytes(self.graph, node)
        return Region(
            name=node.name,
            kind=node.op,
            nodes=(node.name,),
            why=self.why_library(node, call, flops, size),
            call=call,
            contraction=of,
            operands=node.inputs[:2] if of is not None else (),
            outputs=(Buffer(node.name, node.type.shape, node.type.dtype),),
            reads=tuple(dict.fromkeys(node.inputs)),
            bytes=size,
            flops=flops,
        )

    def why_library(self, node: Node, call: Call, flops: Dim, size: Dim) -> Reason:
        if node.op == "contract":
            code = Code.LIBRARY_PIXELS if call.of_pixels else Code.LIBRARY
            return reason(code, flops=float(hint(flops)), bytes=float(hint(size)))
        op = node.origin.op
        if isinstance(node.payload, Call) and is_mask(node.payload):
            return reason(Code.MASK, op=op)
        for word, code in (("weights", Code.WEIGHTS), ("integers", Code.INTEGERS)):
            if word in node.args:
                return reason(code, op=op)
        if "rounded" in node.args:
            return reason(Code.ROUNDED, op=op, dtype=str(node.type.dtype)[6:])
        if "declined" not in node.args:
            return reason(Code.OPAQUE, op=op)
        types = [self.graph[i].type.dtype for i in node.inputs]
        other = [t for t in types if t not in (torch.float32, torch.float16, torch.bfloat16)]
        if other:
            return reason(Code.NOT_FLOAT, op=op, dtype=str(other[0])[6:])
        return reason(Code.DECLINED, op=op)
