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

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from kernelwright.expr import Expr
from kernelwright.expr import cost as operations
from kernelwright.graph import Graph, hint
from kernelwright.plan.limits import Limits
from kernelwright.plan.model import LAZY
from kernelwright.plan.reasons import Code, Shared, reason
from kernelwright.walk import reach


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


@dataclass
class Load:
    """What a unit computes on the way (`nodes`) and reads for it (`leaves`), with the sums of both.

    `asked` counts for every value how many operands of the unit it is: what nothing asks for any
    more goes, so that a value which is stored elsewhere changes what lies below it and no more.
    """

    nodes: set[str] = field(default_factory=set)
    leaves: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    flops: int = 0
    bytes: int = 0


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
            self.forget(name, [u for u in self.all_units() if name in self.load(u).leaves])
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
        again = sum(map(self.cost, readers))
        home = self.home(name, readers)
        self.stored[name] = home
        kernels = readers if home in readers else [*readers, home]
        self.look_again(name, kernels)
        once = sum(map(self.cost, kernels)) + self.bytes(name)
        if home.free is not None:
            once -= self.bytes(home.free)  # the product itself is no longer written
        count = len(readers)
        if count > 1 and once < again:
            why = reason(Code.STORED, count=count, once=float(once), again=float(again))
            return Shared(name, True, count, why)
        self.forget(name, kernels)
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

    def forget(self, name: str, readers: list[Unit]) -> None:
        """Take the value to be lazy again."""
        home = self.stored.pop(name)
        self.loads.pop(home, None)
        self.look_again(name, [u for u in readers if u is not home])

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
            self.loads[unit] = Load()
            self.ask(unit, self.roots(unit))
        return self.loads[unit]

    def cost(self, unit: Unit) -> float:
        """The time of a unit, in bytes."""
        load = self.load(unit)
        return unit.overhead + (load.bytes + load.flops / self.limits.flops_per_byte)

    def look_again(self, name: str, units: list[Unit]) -> None:
        """Whether a value is stored has changed: who read it may compute it now, or the reverse."""
        home = self.stored.get(name)
        for unit in units:
            if unit is home:
                self.loads.pop(unit, None)
            elif times := self.load(unit).asked.pop(name, 0):
                self.drop(unit, self.leave(unit, name))
                self.ask(unit, self.enter(unit, name))
                self.loads[unit].asked[name] = times

    def ask(self, unit: Unit, names: Iterable[str]) -> None:
        """These are operands in the unit, once more."""
        asked, stack = self.loads[unit].asked, list(names)
        while stack:
            name = stack.pop()
            asked[name] += 1
            if asked[name] == 1:
                stack += self.enter(unit, name)

    def drop(self, unit: Unit, names: Iterable[str]) -> None:
        """These are operands in the unit, once less."""
        asked, stack = self.loads[unit].asked, list(names)
        while stack:
            name = stack.pop()
            asked[name] -= 1
            if not asked[name]:
                del asked[name]
                stack += self.leave(unit, name)

    def enter(self, unit: Unit, name: str) -> tuple[str, ...]:
        """The unit computes a value, or reads it; what it is computed from."""
        load = self.loads[unit]
        if self.computes(unit, name):
            load.nodes.add(name)
            load.flops += self.flops(name)
            return self.graph[name].inputs
        self.read(unit, name, 1)
        return ()

    def leave(self, unit: Unit, name: str) -> tuple[str, ...]:
        """The unit does so no longer."""
        load = self.loads[unit]
        if name in load.nodes:
            load.nodes.discard(name)
            load.flops -= self.flops(name)
            return self.graph[name].inputs
        self.read(unit, name, -1)
        return ()

    def read(self, unit: Unit, name: str, change: int) -> None:
        """A value is read from memory, or no longer; it counts once, through whatever views."""
        if name in unit.own:
            return
        load, base = self.loads[unit], self.graph.base(name)
        before = load.leaves.pop(base, 0)
        if before + change:
            load.leaves[base] = before + change
        if 0 in (before, before + change) and base != unit.free:
            load.bytes += change * self.bytes(base)

    def bytes(self, name: str) -> int:
        return self.sizes[name][0]

    def flops(self, name: str) -> int:
        return self.sizes[name][1]
