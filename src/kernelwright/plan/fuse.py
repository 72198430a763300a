"""The walk that turns a primitive graph into regions.

Nodes are taken in running order. Contractions, windows and opaque calls are steps of their own. A
map whose operands are all in memory stays lazy: whoever needs it computes it on the way; so does a
cat, whose parts are in memory or lazy themselves. A
reduction opens a region, or joins the one that computes its operand; a map over something that a
region computes joins that region. What cannot join says why, and its operands are then stored.
"""

from __future__ import annotations

import torch

from kernelwright.graph import SOURCES, Call, Contraction, Dim, Graph, Node, hint
from kernelwright.plan import cost
from kernelwright.plan.domain import Misaligned
from kernelwright.plan.limits import Limits
from kernelwright.plan.model import Buffer, Code, Plan, Reason, Refusal, Region, reason
from kernelwright.plan.names import region_name
from kernelwright.plan.region import LAZY, Builder, Refused

CALLS = ("contract", "window", "opaque")
Unit = Builder | str


def plan(graph: Graph, limits: Limits) -> Plan:
    """Regions in running order, with the reasons for what was and was not fused."""
    return _Walk(graph, limits).run()


class _Walk:
    def __init__(self, graph: Graph, limits: Limits) -> None:
        self.graph = graph
        self.limits = limits
        self.homes: dict[str, Builder] = {}
        self.builders: list[Builder] = []
        self.refusals: list[Refusal] = []

    def run(self) -> Plan:
        for node in self.graph:
            if node.op in CALLS:
                for name in node.inputs:
                    self.require(name)
            elif node.op == "map":
                self.offer_map(node)
            elif node.op == "reduce":
                self.offer_reduce(node)
        for name in self.graph.results:
            self.require(name)
        return Plan(self.graph, tuple(self.finish()), tuple(self.refusals))

    # ---- where a node goes -------------------------------------------------------------------

    def offer_map(self, node: Node) -> None:
        for region in self.candidates(node.inputs):
            if self.admit(node, region):
                return

    def offer_reduce(self, node: Node) -> None:
        candidates = self.candidates(node.inputs)
        for region in dict.fromkeys([*candidates, *self.siblings(node.inputs[0])]):
            if self.admit(node, region):
                return
        region = self.open(node)
        region.start(node.inputs[0])
        region.join_reduce(node)
        self.find_barriers(node, region)
        self.settle(node, region)

    def admit(self, node: Node, region: Builder) -> bool:
        try:
            self.check_cycle(node, region)
            (region.join_map if node.op == "map" else region.join_reduce)(node)
            self.find_barriers(node, region)
            self.check_cycle(node, region)
        except Refused as refused:
            region.withdraw(node)
            return self.refuse(node, region, refused.why)
        except Misaligned:
            region.withdraw(node)
            why = reason(Code.MISALIGNED, op=node.origin.op, region=region.name)
            return self.refuse(node, region, why)
        self.settle(node, region)
        return True

    def refuse(self, node: Node, region: Builder, why: Reason) -> bool:
        region.refused.add(node.name)
        self.refusals.append(Refusal(node.origin.op, node.origin.place, why))
        return False

    def find_barriers(self, node: Node, region: Builder) -> None:
        """Reshapes below the node that no splitting of axes explains are read from memory."""
        while True:
            try:
                region.probe(node)
                return
            except Misaligned as misaligned:
                if misaligned.view is None:
                    raise
                region.barriers.add(misaligned.view)

    def settle(self, node: Node, region: Builder) -> None:
        self.homes[node.name] = region
        for name in self.externals(node.inputs, region):
            self.require(name)

    def require(self, name: str) -> None:
        """The value (or what it is a view of) must be in memory."""
        node = self.graph[name]
        if node.op == "view":
            self.require(node.inputs[0])
        elif name in self.homes:
            self.homes[name].wanted[name] = None
        elif node.op in LAZY:
            region = self.open(node)
            region.place(name)
            region.wanted[name] = None
            self.find_barriers(node, region)
            self.settle(node, region)

    def open(self, node: Node) -> Builder:
        region = Builder(self.graph, self.limits, node.origin.op, homes=self.homes)
        self.builders.append(region)
        return region

    # ---- who depends on whom -----------------------------------------------------------------

    def candidates(self, names: tuple[str, ...]) -> list[Builder]:
        """The regions that compute something these values are made of, the latest first."""
        found: set[Builder] = set()

        def visit(name: str) -> None:
            node = self.graph[name]
            if name in self.homes:
                found.add(self.homes[name])
            elif node.op in (*LAZY, "view"):
                for i in node.inputs:
                    visit(i)

        for name in names:
            visit(name)
        return sorted(found, key=self.builders.index, reverse=True)

    def siblings(self, source: str) -> list[Builder]:
        """Regions with a reduction that reads this value, or a part of it, or one of its shape.

        The last only where everything becomes one number: no row of either has to wait.
        """
        made = {source, *self.made_of(source)}
        return [
            r
            for r in reversed(self.builders)
            if r.reduces and (made & r.seen.keys() or r.alongside(source) is not None)
        ]

    def made_of(self, name: str) -> set[str]:
        """What is read when this value is computed on the way."""
        node, found = self.graph[name], set[str]()
        if name not in self.homes and node.op in (*LAZY, "view"):
            for i in node.inputs:
                found |= {i, *self.made_of(i)}
        return found

    def externals(self, names: tuple[str, ...], region: Builder) -> list[str]:
        """What the region reads from memory when it computes these values."""
        found: dict[str, None] = {}

        def visit(name: str) -> None:
            node = self.graph[name]
            if self.homes.get(name) is region:
                return
            if name in region.barriers:
                found[self.graph.base(name)] = None
            elif node.op == "view" or (node.op in LAZY and name not in self.homes):
                for i in node.inputs:
                    visit(i)
            else:
                found[name] = None

        for name in names:
            visit(name)
        return list(found)

    def unit(self, name: str) -> Unit:
        return self.homes.get(name, name)

    def reads(self, unit: Unit) -> list[str]:
        if isinstance(unit, Builder):
            return self.externals(self.operands(unit), unit)
        node = self.graph[unit]
        if node.op in SOURCES:
            return []
        return [self.graph.base(i) for i in node.inputs]

    def operands(self, region: Builder) -> tuple[str, ...]:
        names = [i for n in region.placed for i in self.graph[n].inputs]
        return tuple(dict.fromkeys(names))

    def check_cycle(self, node: Node, region: Builder) -> None:
        seen: set[Unit] = set()
        queue = [self.unit(e) for e in self.externals(node.inputs, region)]
        while queue:
            unit = queue.pop()
            if unit is region:
                raise Refused(reason(Code.CYCLE, op=node.origin.op, region=region.name))
            if unit not in seen:
                seen.add(unit)
                queue += [self.unit(e) for e in self.reads(unit)]

    # ---- the finished regions ----------------------------------------------------------------

    def finish(self) -> list[Region]:
        """Steps in running order: each after everything that it reads."""
        steps: list[Region] = []
        done: set[Unit] = set()
        names: set[str] = set()

        def visit(unit: Unit) -> None:
            if unit in done:
                return
            done.add(unit)
            for name in self.reads(unit):
                visit(self.unit(name))
            step = self.step(unit, names)
            if step is not None:
                steps.append(step)

        for node in self.graph:
            if node.op in CALLS or node.name in self.homes:
                visit(self.unit(node.name))
        return steps

    def step(self, unit: Unit, names: set[str]) -> Region | None:
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
        found: set[str] = set()

        def visit(name: str) -> None:
            node = self.graph[name]
            own = self.homes.get(name) is region
            lazy = node.op in (*LAZY, "view") and name not in self.homes
            if name not in found and (own or lazy) and name not in region.barriers:
                found.add(name)
                for i in node.inputs:
                    visit(i)

        for name in region.placed:
            visit(name)
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
            why=self.why_library(node, flops, size),
            call=call,
            contraction=of,
            operands=node.inputs[:2] if of is not None else (),
            outputs=(Buffer(node.name, node.type.shape, node.type.dtype),),
            reads=tuple(dict.fromkeys(node.inputs)),
            bytes=size,
            flops=flops,
        )

    def why_library(self, node: Node, flops: Dim, size: Dim) -> Reason:
        if node.op == "contract":
            return reason(Code.LIBRARY, flops=float(hint(flops)), bytes=float(hint(size)))
        if node.op == "window":
            return reason(Code.WINDOW)
        op = node.origin.op
        if "rounded" in node.args:
            return reason(Code.ROUNDED, op=op, dtype=str(node.type.dtype)[6:])
        if "declined" not in node.args:
            return reason(Code.OPAQUE, op=op)
        types = [self.graph[i].type.dtype for i in node.inputs]
        other = [t for t in types if t not in (torch.float32, torch.float16, torch.bfloat16)]
        if other:
            return reason(Code.NOT_FLOAT, op=op, dtype=str(other[0])[6:])
        return reason(Code.DECLINED, op=op)
