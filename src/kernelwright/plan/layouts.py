"""Which of the library's convolutions run in channels_last, and why.

    choose   the primitives -> for each convolution that stays with the library, a Layout
    slow     a Plan in which some do -> those of them whose followers are slow over that order, with
             what follows, or all of it, in the other
    told     the same Plan with the reason at each convolution

In such a Plan convolutions have other names (channels.py); `first` gives those that Layouts go by.

A convolution is chosen where what the library gains is more than what it costs to bring its operand
into the order, which is nothing where a kernel of ours or a chosen convolution makes it. It must be
as accurate there as eager is (accuracy.py): the library may take TF32 in one order alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace

import torch

from kernelwright.accuracy import UNKNOWN, Accuracies, is_tf32
from kernelwright.graph import Contraction, Graph, Node, hint
from kernelwright.plan.model import Access, Plan, Program, Region, element_type
from kernelwright.plan.pixels import is_of_pixels
from kernelwright.plan.policy import Policy
from kernelwright.plan.reasons import Code, Reason, reason
from kernelwright.plan.windows import beside
from kernelwright.targets.target import LibraryConvolutions, Target
from kernelwright.walk import reach

HALVES = (torch.float16, torch.bfloat16)
MADE = ("map", "cat", "view", "window", "reduce")
CHANNELS = 1  # the axis of them, before those of space
SECTOR = 32  # bytes that memory moves at least
VECTOR = 16  # numbers that a core computes at once, of those that lie side by side
# Rows that lie side by side in memory and are one block; blocks that keep a machine busy.
SIDE_BY_SIDE, BUSY_BLOCKS = 32, 64


@dataclass(frozen=True)
class Layout:
    """Whether a convolution runs in channels_last, and what to say of it behind `rest`.

    `gain` is the time that the order saves where it is taken: from `fewest` samples on. What is
    made of it by maps up to the value `back` is stored with the channels first again.
    """

    last: bool
    code: Code
    numbers: tuple[tuple[str, object], ...] = ()
    gain: float = 0.0
    fewest: int = 1
    back: str | None = None

    def told(self, rest: Reason) -> Reason:
        return reason(self.code, rest=rest, **dict(self.numbers))


Layouts = dict[str, Layout]


def in_channels_last(layouts: Layouts) -> dict[str, int]:
    """From how many samples on each convolution is, that is at all."""
    return {name: layout.fewest for name, layout in layouts.items() if layout.last}


def turned_back(layouts: Layouts) -> frozenset[str]:
    """The values that are stored with their channels first behind such a convolution."""
    return frozenset(layout.back for layout in layouts.values() if layout.back is not None)


def choose(
    graph: Graph,
    generated: frozenset[str],
    close: frozenset[str],
    target: Target,
    accuracies: Accuracies,
    batch: int,
    policy: Policy,
) -> Layouts:
    """For the convolutions of the library that may run in channels_last, whether they do.

    Those of the `generated` that are `close` to the library's time are its own where what they read
    lies so.
    """
    strides = graph.contract.strides
    if target.convolutions is None or strides is None:
        return {}
    return _Choice(graph, target.convolutions, accuracies, batch, policy).run(generated, close)


@dataclass(frozen=True)
class _Choice:
    graph: Graph
    library: LibraryConvolutions
    accuracies: Accuracies
    batch: int
    policy: Policy

    def run(self, generated: frozenset[str], close: frozenset[str]) -> Layouts:
        found: Layouts = {}
        last: set[str] = set()  # values that are made of what lies so
        for node in self.graph:
            follows = node.name in close and node.inputs[0] in last
            if (node.name not in generated or follows) and self.may_run(node):
                found[node.name] = self.layout(node, last)
                if found[node.name].last:
                    last.add(node.name)
            elif node.op in MADE and any(name in last for name in node.inputs):
                last.add(node.name)
        return found

    def may_run(self, node: Node) -> bool:
        """Whether it is a convolution of a batch in two or three dimensions, and known here."""
        payload = node.payload
        if not isinstance(payload, Contraction) or payload.is_product:
            return False
        x, w = (self.graph[name].type for name in node.inputs[:2])
        measured = self.accuracies.get(node.name, UNKNOWN)
        known = None not in (measured.eager, measured.channels_last) or self.is_exact(node)
        return known and len(x.shape) == len(w.shape) and len(x.shape) in self.library.ranks

    def is_exact(self, node: Node) -> bool:
        """Whether it is as accurate in either order, without a measurement."""
        return self.library.alike or node.type.dtype in HALVES

    def layout(self, node: Node, last: set[str]) -> Layout:
        accuracy = self.accuracies.get(node.name, UNKNOWN)
        if not self.is_exact(node) and not accuracy.allows(accuracy.channels_last):
            numbers = {"error": accuracy.channels_last, "eager": accuracy.eager}
            return Layout(False, Code.TF32_LAST, tuple(numbers.items()))
        gain, cost = self.gain(node), self.cost(node)
        if self.policy.channels_last_always:
            return self.last(node, Code.CHANNELS_LAST, math.inf, gain=gain - cost)
        if gain > cost:
            return self.last(node, Code.CHANNELS_LAST, gain - cost, gain=gain - cost)
        if gain == cost == 0 and node.inputs[0] in last:
            return self.last(node, Code.CHANNELS_KEPT, 0.0)
        return Layout(False, Code.FIRST_FASTER, (("gain", gain), ("cost", cost)))

    def last(self, node: Node, code: Code, saved: float, **numbers: object) -> Layout:
        """In channels_last, from where on eager is no more accurate than that."""
        accuracy = self.accuracies.get(node.name, UNKNOWN)
        fewest = accuracy.fewest if is_tf32(accuracy.channels_last) else 1
        if fewest > 1:
            fewest = hint(self.graph[node.inputs[0]].type.shape[0], fewest)
        told = {"from_batch": f" from {fewest} samples on" if fewest > 1 else "", **numbers}
        return Layout(True, code, tuple(told.items()), saved, fewest)

    def gain(self, node: Node) -> float:
        """The time that the library saves."""
        x, w = (self.graph[name].type.shape for name in node.inputs[:2])
        contraction = node.payload
        assert isinstance(contraction, Contraction)
        moved = self.bytes(node.inputs[0]) + self.bytes(node.name)
        turned = self.library.turning_time(moved, _by_steps(contraction))
        turned -= self.library.weight_overhead
        if self.library.alike:
            product = self.library.pixels_as_products and is_of_pixels(self.graph, node)
            turned -= self.bytes(node.inputs[1]) / self.library.weight_rate
            return 0.0 if product else turned
        groups, inside, outside = _groups(contraction)
        if groups > 1 and inside == outside == 1:
            return self.library.depthwise_gain(moved) if len(x) == 4 else 0.0
        if groups > 1 and inside != outside:
            return 0.0  # it turns the weights in a kernel that takes longer than all it saves
        if all(d == 1 for d in w[2:]):
            return 0.0  # matrix products, which read either order
        return turned

    def cost(self, node: Node) -> float:
        """The time to bring the operand into the order, if nobody makes it so."""
        name = self.graph.base(node.inputs[0])
        if self.library.alike and self.graph[name].op == "reduce":
            return self.library.store_time(self.library.scattered * self.bytes(name)) / 2
        if self.graph[name].op in ("map", "cat", "reduce", "contract", "window"):
            return 0.0
        return self.library.store_time(self.bytes(name))

    def bytes(self, name: str) -> int:
        return _bytes(self.graph, name, self.batch)


def _bytes(graph: Graph, name: str, batch: int) -> int:
    type = graph[name].type
    return hint(type.numel, batch) * type.dtype.itemsize


def _by_steps(contraction: Contraction) -> bool:
    """Whether the places of a transposed convolution's operand lie apart in its result."""
    operand = {axis for place in contraction.left for axis, _ in place.terms}
    space = contraction.out[CHANNELS + 1 :]
    return any(step != 1 for place in space for axis, step in place.terms if axis in operand)


def _groups(contraction: Contraction) -> tuple[int, int, int]:
    """How many groups, and the channels of each, in and out."""
    _, groups, filters, channels, *_ = (hint(n) for n in contraction.sizes)
    return groups, channels, filters


# ---- what follows --------------------------------------------------------------------------------


def slow(
    plan: Plan,
    primitives: Graph,
    layouts: Layouts,
    first: Mapping[str, str],
    target: Target,
    batch: int,
) -> Layouts:
    """The convolutions whose gain is lost in kernels behind them, with the channels first again.

    Or with the channels first behind them, where that costs less and all are `alike`. The same of a
    gain that is lost in the kernel that makes their operand.
    """
    found: Layouts = {}
    back = turned_back(layouts)
    for region in plan.regions:
        behind = _convolutions(plan, region, first, back)
        names = [n for n in dict.fromkeys((*behind, *_fed(plan, region, first))) if n not in found]
        library = target.convolutions
        if library is None or not names:
            continue
        lost = _waste(plan.graph, region, batch, target) / library.store_rate
        turning = [library.store_time(_bytes(primitives, n, batch)) for n in names]
        why = (("region", region.name), ("lost", lost))
        gain = sum(layouts[n].gain for n in names)
        new = all(layouts[n].back is None for n in names)
        if library.alike and new and sum(turning) < min(lost, gain):
            for name, cost in zip(names, turning, strict=True):
                found[name] = _returned(primitives, name, layouts[name], cost, why)
        elif lost > gain:
            codes = {n: Code.FIRST_TAIL if n in behind else Code.FIRST_FED for n in names}
            found |= {n: Layout(False, code, why) for n, code in codes.items()}
    return found


def _returned(
    primitives: Graph, name: str, layout: Layout, cost: float, why: tuple[tuple[str, object], ...]
) -> Layout:
    """The channels first behind a convolution, from the last map on that is made of it alone."""
    value, back = name, name
    while len(users := primitives.users[value]) == 1 and value not in primitives.results:
        reader = primitives[users[0]]
        size = primitives[name].type.numel
        if reader.op not in ("map", "view") or reader.type.numel != size:
            break
        value = reader.name
        back = value if reader.op == "map" else back
    numbers = (*layout.numbers, *why)
    return replace(
        layout, code=Code.CHANNELS_BACK, numbers=numbers, gain=layout.gain - cost, back=back
    )


def told(plan: Plan, layouts: Layouts, first: Mapping[str, str]) -> Plan:
    """With the reason for its order behind that of each convolution."""

    def explained(region: Region) -> Region:
        names = (first.get(n, n) for n in region.nodes)
        layout = next((layouts[n] for n in names if n in layouts), None)
        if layout is None or region.kind != "contract":
            return region
        return replace(region, why=layout.told(region.why))

    return replace(plan, regions=tuple(explained(r) for r in plan.regions))


def _convolutions(
    plan: Plan, region: Region, first: Mapping[str, str], back: Set[str]
) -> list[str]:
    """The convolutions in channels_last that a region's operands are made of, the nearest ones.

    Those `back` have their channels first.
    """

    def below(name: str) -> tuple[str, ...]:
        node = plan.graph[name]
        return node.inputs if node.op in MADE and name not in back else ()

    return [first[name] for name in reach(region.reads, below) if name in first]


def _fed(plan: Plan, region: Region, first: Mapping[str, str]) -> list[str]:
    """The convolutions in channels_last that read what a kernel without reductions makes."""
    if region.program is None or (region.program.stages and region.conv is None):
        return []
    made = {b.name for b in region.outputs}
    readers = (n for n in plan.graph if n.name in first and plan.graph.base(n.inputs[0]) in made)
    return [first[n.name] for n in readers]


def _waste(graph: Graph, region: Region, batch: int, target: Target) -> float:
    """Bytes that a kernel could have moved besides: too few blocks, or parts of sectors.

    The epilogue of a generated convolution, whose threads lie along places, moves what has its
    channels last number by number.
    """
    program = region.program
    if program is None:
        return 0.0
    if region.conv is not None:
        return _waste_of_tiles(graph, program, region.conv.product, batch)
    if not program.stages:  # blocks are turned (lower/turn.py), but for those of cats
        scattered = program.loads if program.asked and target.lanes is not None else []
        return sum(_waste_of_parts(graph, program, access, batch) for access in scattered)
    stores = [s.access for s in program.stores if program.strided or s.level == "element"]
    if target.lanes is None:
        return _waste_of_cores(graph, program, stores, batch, target)
    wasted = 0.0
    for access in (*program.loads, *stores):
        count = hint(program.count(tuple(access.atoms)), batch)
        wasted += count * _beside_lanes(graph, program, access)
    rows = program.count(program.rows)
    if program.strided and not isinstance(rows, int):  # a fixed number is spread (lower/config.py)
        blocks = hint(rows, batch) / SIDE_BY_SIDE
        wasted += max(0.0, BUSY_BLOCKS / blocks - 1) * hint(region.bytes, batch)
    return wasted


def _waste_of_parts(graph: Graph, program: Program, access: Access, batch: int) -> float:
    """Of an operand that is a part of a cat: no more of it is read than there is."""
    count = hint(program.count(tuple(access.atoms)), batch)
    least = min(count, hint(graph[access.buffer].type.numel, batch))
    return least * _beside_lanes(graph, program, access)


def _waste_of_tiles(graph: Graph, program: Program, product: str, batch: int) -> float:
    own = next((a for a in program.loads if a.buffer == product), None)
    if own is None:
        return 0.0
    lanes = tuple(sorted(own.atoms, key=lambda atom: -hint(own.stride(atom), batch)))
    stored = [s.access for s in program.stores if s.level == "element"]
    others = [*program.as_large_as(own), *stored]
    wasted = (
        hint(program.count(tuple(a.atoms)), batch) * _besides(graph, a, _piece(program, a, lanes))
        for a in others
        if a.atoms & set(lanes)
    )
    return sum(wasted)


def _waste_of_cores(
    graph: Graph, program: Program, stores: list[Access], batch: int, target: Target
) -> float:
    """Numbers that lie apart are brought together one by one, parameters again for every row.

    What is scattered costs a line of the cache that stays there until the next rows have filled it.
    Short runs leave lanes of a vector empty.
    """
    count = hint(program.count(tuple(program.sizes)), batch)
    wasted = sum(count * _beside_lanes(graph, program, access) for access in program.loads)
    scattered = [access for access in stores if _beside_lanes(graph, program, access)]
    more = target.convolutions.scattered if target.convolutions is not None else 1.0
    sizes = (element_type(graph, access.buffer).itemsize for access in scattered)
    wasted += more * count * sum(sizes)
    run = program.count(program.lanes)
    if isinstance(run, int) and run < VECTOR:
        wasted += (VECTOR / run - 1) * hint(program.flops(), batch) / target.flops_per_byte
    return wasted


def _beside_lanes(graph: Graph, program: Program, access: Access) -> float:
    """For each element of an access the bytes of its sector that neighbouring lanes leave."""
    lanes = _lanes(program)
    if not access.atoms & set(lanes):
        return 0.0
    return _besides(graph, access, _piece(program, access, lanes))


def _besides(graph: Graph, access: Access, piece: int) -> float:
    """The same of pieces of so many elements that lie side by side."""
    size = element_type(graph, access.buffer).itemsize
    return size * max(0.0, SECTOR / (size * piece) - 1)


def _lanes(program: Program) -> tuple[int, ...]:
    """The axes over which threads lie, the one of neighbouring threads last."""
    if not program.strided:
        return program.elements
    if not program.together:
        return program.rows
    near = beside(program)
    return (*(a for a in program.rows if a != near), near)


def _piece(program: Program, access: Access, lanes: tuple[int, ...]) -> int:
    """How many elements of neighbouring lanes lie side by side in memory."""
    count = 1
    for atom in reversed(lanes):
        if access.stride(atom) != count or not isinstance(program.sizes[atom], int):
            break
        count *= hint(program.sizes[atom])
    return count
