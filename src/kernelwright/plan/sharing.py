"""A value that several kernels use: stored once and read by all, or computed again in each.

In: the kernels of a plan in which such values are computed again everywhere. Out: those that are
better stored, and for each of the shared values the reason with its numbers. Both ways are counted
in bytes: what the kernels read, what is written, the arithmetic in the time of so many bytes, and a
launch where the value would need a kernel of its own. It needs none where the first of its readers
walks all of it anyway and can store it on the way, nor where it hangs on a generated product, whose
epilogue then stores it in the place of the product.

Values are taken in running order, so that those before a value are decided: a residual stream
h[k] = h[k-1] + branch[k] is read from the nearest stored h. What was stored for readers that have
other stored values to read by now is looked at once more at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from kernelwright.expr import Expr
from kernelwright.expr import cost as operations
from kernelwright.graph import Graph, hint
from kernelwright.plan.limits import Limits
from kernelwright.plan.model import Code, Shared, reason
from kernelwright.walk import reach

LAZY = ("map", "cat", "window")


@dataclass(eq=False)
class Unit:
    """A kernel: what it computes (`own`), from what (`roots`), over how many elements.

    `barriers` are views that it reads from memory, `again` what it computes though another unit has
    it. It is `open` if reductions and stores may join.
    """

    roots: tuple[str, ...]
    own: frozenset[str]
    elements: int
    open: bool
    barriers: frozenset[str] = frozenset()
    again: frozenset[str] = frozenset()
    overhead: float = 0.0
    free: str | None = None


@dataclass(frozen=True)
class Load:
    """What a unit takes, in bytes: what it reads (`leaves`) and computes from that (`nodes`)."""

    cost: float
    nodes: set[str]
    leaves: set[str]


def share(
    graph: Graph,
    units: list[Unit],
    homes: Mapping[str, object],
    seat: Callable[[str, frozenset[str]], str | None],
    limits: Limits,
    batch: int,
    again: Collection[str] = (),
) -> tuple[Shared, ...]:
    """A verdict on every value that at least two units compute.

    `homes` has the values that are in memory, or in a register of one unit, in any case; `seat` the
    generated product, if any, whose epilogue can store a value while certain others are stored.
    What is made of the values `again` is not judged: each unit may make those themselves again.
    """
    return _Sharing(graph, units, homes, seat, limits, batch, again).run()


@dataclass
class _Sharing:
    graph: Graph
    units: list[Unit]
    homes: Mapping[str, object]
    seat: Callable[[str, frozenset[str]], str | None]
    limits: Limits
    batch: int
    again: Collection[str]
    stored: dict[str, Unit] = field(default_factory=dict)
    loads: dict[Unit, Load] = field(default_factory=dict)

    @cached_property
    def sizes(self) -> dict[str, tuple[int, int]]:
        """The bytes of each value, and the float operations that it takes."""
        found = {}
        for node in self.graph:
            elements = hint(node.type.numel, self.batch)
            each = operations(node.payload) if isinstance(node.payload, Expr) else 0
            found[node.name] = (elements * node.type.dtype.itemsize, elements * each)
        return found

    def run(self) -> tuple[Shared, ...]:
        verdicts: dict[str, Shared] = {}
        for name in self.candidates():
            verdicts[name] = self.judge(name)
        for name in list(self.stored):
            self.forget(name)
            verdicts[name] = self.judge(name)
        return tuple(v for v in verdicts.values() if v.readers > 1)

    def candidates(self) -> list[str]:
        """Values that two units compute, but for those that only lead to another such value."""
        times: dict[str, int] = {}
        for unit in self.units:
            for name in self.load(unit).nodes:
                times[name] = times.get(name, 0) + 1
        return [
            node.name
            for node in self.graph
            if node.op in LAZY
            and times.get(node.name, 0) > 1
            and not self.leads_on(node.name)
            and not self.may_be_made_again(node.name)
        ]

    def may_be_made_again(self, name: str) -> bool:
        """Whether the value comes, computed on the way, from one of those `again`."""

        def below(value: str) -> tuple[str, ...]:
            node = self.graph[value]
            lazy = node.op == "view" or (node.op in LAZY and value not in self.homes)
            return node.inputs if lazy else ()

        return bool(self.again) and any(value in self.again for value in reach([name], below))

    def leads_on(self, name: str) -> bool:
        """Whether one other lazy value of the same size is the only reader."""
        users = self.graph.users[name]
        while len(users) == 1 and self.graph[users[0]].op == "view":
            users = self.graph.users[users[0]]
        if len(users) != 1 or self.graph[users[0]].op not in LAZY or users[0] in self.homes:
            return False
        return self.bytes(users[0]) <= self.bytes(name)

    # ---- one value ---------------------------------------------------------------------------

    def judge(self, name: str) -> Shared:
        """Store the value if that is cheaper."""
        readers = [u for u in self.all_units() if name in self.load(u).nodes]
        again = sum(self.load(u).cost for u in readers)
        home = self.home(name, readers)
        self.stored[name] = home
        before = {u: self.loads.pop(u) for u in readers}
        kernels = readers if home in readers else [*readers, home]
        once = sum(self.load(u).cost for u in kernels) + self.bytes(name)
        if home.free is not None:
            once -= self.bytes(home.free)  # the product itself is no longer written
        count = len(readers)
        if count > 1 and once < again:
            why = reason(Code.STORED, count=count, once=float(once), again=float(again))
            return Shared(name, True, count, why)
        del self.stored[name]
        self.loads.pop(home, None)
        self.loads |= before
        why = reason(Code.RECOMPUTED, count=count, once=float(once), again=float(again))
        return Shared(name, False, count, why)

    def home(self, name: str, readers: list[Unit]) -> Unit:
        """The unit that would store the value: the epilogue of a product, a reader, or its own."""
        node = self.graph[name]
        elements = hint(node.type.numel, self.batch)
        roots, own = node.inputs, frozenset({name})
        product = self.seat(name, frozenset(self.stored))
        if product is not None:
            return Unit(roots, own, elements, open=False, free=product)
        whole = [u for u in readers if u.open and u.elements == elements]
        if whole:
            return whole[0]
        return Unit(roots, own, elements, open=True, overhead=self.limits.launch_bytes)

    def forget(self, name: str) -> None:
        """Take the value to be lazy again, until it is judged once more."""
        readers = [u for u in self.all_units() if name in self.load(u).leaves]
        home = self.stored.pop(name)
        for unit in (*readers, home):
            self.loads.pop(unit, None)

    # ---- what units read ---------------------------------------------------------------------

    def all_units(self) -> list[Unit]:
        """In running order as far as it matters: a value's own kernel is before its readers."""
        single = [u for u in dict.fromkeys(self.stored.values()) if u not in self.units]
        return [*single, *self.units]

    def computes(self, unit: Unit, name: str) -> bool:
        """Whether a unit computes a value on the way; if not, it reads it."""
        node = self.graph[name]
        if name in unit.own or name in unit.barriers or self.stored.get(name, unit) is not unit:
            return False
        lazy = name not in self.homes or name in unit.again
        return node.op == "view" or (node.op in LAZY and lazy)

    def roots(self, unit: Unit) -> list[str]:
        joined = [
            i for name, u in self.stored.items() if u is unit for i in self.graph[name].inputs
        ]
        return [*unit.roots, *joined]

    def load(self, unit: Unit) -> Load:
        if unit not in self.loads:
            inside: set[str] = set()

            def below(name: str) -> tuple[str, ...]:
                if not self.computes(unit, name):
                    return ()
                inside.add(name)
                return self.graph[name].inputs

            reached = reach(self.roots(unit), below)
            ends = {self.graph.base(n) for n in reached if n not in inside and n not in unit.own}
            moved = sum(self.bytes(n) for n in ends if n != unit.free)
            moved += sum(self.flops(n) for n in inside) / self.limits.flops_per_byte
            self.loads[unit] = Load(unit.overhead + moved, inside, ends)
        return self.loads[unit]

    def bytes(self, name: str) -> float:
        return self.sizes[name][0]

    def flops(self, name: str) -> float:
        return self.sizes[name][1]
