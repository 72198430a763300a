"""One fused kernel under construction: which nodes it holds, and in which coordinates.

The walk in fuse.py offers nodes one by one; `join_map` and `join_reduce` either take a node in or
give the Reason why not. When the walk is over, `program` pulls every expression down to accesses
of buffers. Coordinates are inferred upwards (`infer`) when a node is offered and pulled downwards
(`pull`) when the program is built; both regroup atoms, and a needed split is made and tried again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar, TypeVar

from kernelwright.expr import Expr, acc, call, const, index, inside, load, substitute
from kernelwright.graph import Cat, Dim, Graph, Node, Reduction, View, Windows, as_dim, hint
from kernelwright.plan.domain import (
    Atoms,
    Axis,
    Layout,
    Misaligned,
    NeedSplit,
    align,
    broadcast_axes,
    flat,
    replace_atom,
    view_down,
    window_down,
    window_up,
)
from kernelwright.plan.limits import Limits
from kernelwright.plan.model import LAZY, Coordinate, Program, Range, Stage, Store
from kernelwright.plan.nest import nested
from kernelwright.plan.reasons import Code, Reason, reason
from kernelwright.walk import Opened, fold, reach

T = TypeVar("T")
# Coordinates at which one kernel computes a lazy value, and ranges that decide whether it does,
# before that is better stored.
MOST_PLACES, MOST_RANGES = 32, 8
# Rows that keep a machine busy (of those that lie side by side in memory, so many are one block),
# and elements below which it does not matter.
FEWEST_ROWS, SIDE_BY_SIDE, FEW_ELEMENTS = 64, 32, 1 << 16
# A value at coordinates, and the ranges outside of which nothing may be read.
Place = tuple[str, Layout, tuple[Range, ...]]


class Refused(Exception):
    """A node cannot join; carries the Reason."""

    def __init__(self, why: Reason) -> None:
        super().__init__(str(why))
        self.why = why


class Tangled(Exception):
    """A value would be computed at too many places; carries its name.

    Every cat or roll that it goes through reads it at two places or more, those of these at four,
    and so on.
    """

    def __init__(self, value: str) -> None:
        super().__init__(value)
        self.value = value


@dataclass(eq=False)
class Builder:
    """A region that still grows.

    `placed` holds the layout of every node inside, `sources` that of the operand of each reduction
    (under the reduction's name) and of the value the region was opened with, `seen` that of values
    in memory that a reduction walks over whole, `barriers` the reshapes that these coordinates
    cannot express (they are read from memory), `wanted` the values that others read. `homes` is
    the walk's table of which region computes which value, `again` has those of other regions that
    are computed here too, as windows do. `closed` says why no reduction may join
    (and if it is for a library's bias, nothing at all), where that is so. `inferred`, `computed`,
    `pulled` and `places` (how many of them, for each value) remember what one attempt found out.
    """

    graph: Graph
    limits: Limits
    name: str
    atoms: Atoms = field(default_factory=Atoms)
    placed: dict[str, Layout] = field(default_factory=dict)
    sources: dict[str, Layout] = field(default_factory=dict)
    seen: dict[str, Layout] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    barriers: set[str] = field(default_factory=set)
    wanted: dict[str, None] = field(default_factory=dict)
    closed: Code | None = None
    homes: Mapping[str, object] = field(default_factory=dict)
    again: frozenset[str] = frozenset()
    order: list[str] = field(default_factory=list)
    labels: dict[Expr, str] = field(default_factory=dict)
    inferred: dict[tuple[str, bool], Layout | None] = field(default_factory=dict)
    computed: dict[str, bool] = field(default_factory=dict)
    pulled: dict[Place, Expr] = field(default_factory=dict)
    places: Counter[str] = field(default_factory=Counter)
    counting: bool = True

    # ---- taking nodes in -------------------------------------------------------------------

    def start(self, value: str) -> None:
        """Open the domain: fresh coordinates for the value that is reduced or stored first."""
        self.sources[value] = self.atoms.layout(self.graph[value].type.shape)

    def place(self, value: str) -> None:
        """Compute the value that opened this domain here: the pointwise region."""
        self.start(value)
        self.placed[value] = self.sources[value]

    def join_map(self, node: Node) -> None:
        if self.closed is Code.WITH_BIAS:
            raise Refused(reason(self.closed, op=node.origin.op, region=self.name))
        layout = self._refining(lambda: self._map_layout(node))
        if frozenset(flat(layout)) not in self._levels(node):
            raise Refused(reason(Code.ROWS_DIFFER, op=node.origin.op, region=self.name))
        self.placed[node.name] = layout

    def nests(self, node: Node, windows: Sequence[str]) -> bool:
        """Whether windows over a map of what is computed here could be reduced here too.

        They can where they lie side by side within the rows, as segments of these. A map of whole
        rows' results joins in any case: it is stored in the place of these.
        """
        if not self.reduces:
            return True
        try:
            self.placed[node.name] = self._refining(lambda: self._map_layout(node))
            if frozenset(flat(self.placed[node.name])) != self.domain:
                return True
            found = self._refining(lambda: [self.infer(w) for w in windows])
        except (Refused, Misaligned):
            return False
        finally:
            self.withdraw(node)
        rows, rank = self._spans()[-1], len(node.type.shape)
        return all(at is not None and rows >= set(flat(at[rank:])) for at in found)

    def join_reduce(self, node: Node) -> None:
        reduction = node.payload
        assert isinstance(reduction, Reduction)
        source = node.inputs[0]
        if self.closed is not None:
            raise Refused(reason(self.closed, op=node.origin.op, region=self.name))
        layout = self._refining(lambda: self._full_layout(node, source))
        if self.placed and not self.reduces:
            self._check_parallel(node, layout, reduction)
        before = dict(self.placed), dict(self.sources)
        self.sources[node.name] = layout
        self.placed[node.name] = reduced_layout(layout, reduction)
        try:
            self._check_levels(node)
        except Refused:
            self.placed, self.sources = before
            raise
        self._refining(lambda: self._see(source, self.sources[node.name]))

    def _check_parallel(self, node: Node, layout: Layout, reduction: Reduction) -> None:
        """A reduction runs row by row; few of them are too slow at storing large values besides."""
        reduced = flat(tuple(layout[axis] for axis in reduction.axes))
        rows = hint(self.atoms.size(self.domain - frozenset(reduced)))
        neighbours = flat(layout)[-1] not in reduced if self.domain else False
        enough = FEWEST_ROWS * (SIDE_BY_SIDE if neighbours else 1)
        if rows < enough and hint(self.atoms.size(self.domain)) > FEW_ELEMENTS:
            op = node.origin.op
            raise Refused(reason(Code.FEW_PARTS, op=op, region=self.name, rows=rows))

    def probe(self, node: Node) -> None:
        """Raise Misaligned unless the node's operands can be expressed in these coordinates.

        Raise Tangled if that takes one of them at too many.
        """
        self.order, self.counting = self.reduces, True
        if node.op == "reduce":
            self._refining(lambda: self.pull(node.inputs[0], self.sources[node.name]))
        else:
            self._refining(lambda: self.pull(node.name, self.placed[node.name]))

    def _count(self, value: str, ranges: int) -> None:
        self.places[value] += 1
        many = self.places[value] > MOST_PLACES or ranges > MOST_RANGES
        if many and self.counting and value not in self.placed:
            raise Tangled(value)

    def forget_places(self) -> None:
        self.pulled.clear()
        self.places.clear()

    def bar(self, view: str) -> None:
        """Read a reshape from memory, since these coordinates cannot express it."""
        self.barriers.add(view)
        self.forget_places()

    def withdraw(self, node: Node) -> None:
        """Undo a join."""
        self.forget_places()
        self.placed.pop(node.name, None)
        if node.op == "reduce":
            self.sources.pop(node.name, None)

    def _map_layout(self, node: Node) -> Layout:
        shape = node.type.shape
        columns = broadcast_axes(self._inferred(node), len(shape))
        # What a reduction has walked over may be walked over again, if nothing else says where.
        weak = broadcast_axes(self._inferred(node, weak=True), len(shape))
        axes: list[Axis] = []
        for dim, strong, fallback in zip(shape, columns, weak, strict=True):
            offers = strong or fallback
            if dim != 1 and not offers:
                raise Refused(reason(Code.BROADCASTS, op=node.origin.op, region=self.name))
            if any(o != offers[0] for o in offers):
                raise Misaligned
            axes.append(offers[0] if offers else ())
        return _apart(tuple(axes))

    def _full_layout(self, node: Node, source: str) -> Layout:
        layout = self.infer(source)
        if layout is None:
            layout = self.infer(source, weak=True)
        shape = self.graph[source].type.shape
        if layout is None:
            layout = self.alongside(source)
        if layout is None or any(d != 1 and not a for d, a in zip(shape, layout, strict=True)):
            raise Refused(reason(Code.BROADCASTS, op=node.origin.op, region=self.name))
        return layout

    def alongside(self, value: str) -> Layout | None:
        """Coordinates for a value of the same shape as one that is reduced to one number here."""
        shape = self.graph[value].type.shape
        for name in self.reduces:
            node = self.graph[name]
            if self.graph[node.inputs[0]].type.shape != shape or node.type.numel != 1:
                continue
            if self._reduced(name) == self.domain:
                return self.sources[name]
        return None

    def _inferred(self, node: Node, weak: bool = False) -> list[Layout]:
        return [found for i in node.inputs if (found := self.infer(i, weak)) is not None]

    def infer(self, value: str, weak: bool = False) -> Layout | None:
        """The coordinates of a value that depends on something placed here; None for others.

        With `weak`, also those of a value in memory that a reduction here has walked over.
        """
        return fold((value, weak), self._open_up, self.inferred)

    def _open_up(
        self, place: tuple[str, bool]
    ) -> tuple[list[tuple[str, bool]], Callable[[Sequence[Layout | None]], Layout | None]]:
        """What the coordinates of a value follow from, and how."""
        value, weak = place
        node = self.graph[value]
        if value in self.refused:
            return [], lambda _: None
        tables = (self.placed, self.sources, self.seen if weak else {})
        known = next((table[value] for table in tables if value in table), None)
        if known is not None:
            return [], lambda _: known
        if value in self.barriers:
            return [], lambda _: None
        below = [(name, weak) for name in node.inputs]
        if node.op == "view":
            return below, lambda of: None if of[0] is None else self._view_up(node, of[0])
        if node.op == "map":
            return below, lambda of: self._joined(node, of)
        if node.op == "window":
            return below, lambda of: None if of[0] is None else self._window_up(node, of[0])
        if node.op == "cat" and any(self._computes(i) for i in node.inputs):
            raise Refused(reason(Code.JOINED, op=node.origin.op, region=self.name))
        return [], lambda _: None

    def _joined(self, node: Node, offered: Sequence[Layout | None]) -> Layout | None:
        """The coordinates of a map from those of its operands."""
        known = [layout for layout in offered if layout is not None]
        if not known:
            return None
        columns = broadcast_axes(known, len(node.type.shape))
        if any(o != offers[0] for offers in columns for o in offers):
            raise Misaligned
        return _apart(tuple(offers[0] if offers else () for offers in columns))

    def _computes(self, value: str) -> bool:
        """Whether this region computes something that the value is made of."""
        return fold(value, self._open_computed, self.computed)

    def _open_computed(
        self, value: str
    ) -> tuple[tuple[str, ...], Callable[[Sequence[bool]], bool]]:
        node = self.graph[value]
        if value in self.placed:
            return (), lambda _: True
        return (node.inputs, any) if self.passes(value) else ((), lambda _: False)

    def passes(self, value: str) -> bool:
        """Whether a value is no end: it is computed on the way wherever it is read."""
        node = self.graph[value]
        lazy = value not in self.homes or value in self.again
        return node.op == "view" or (node.op in LAZY and lazy)

    def _see(self, value: str, layout: Layout) -> None:
        """Note what a reduction over this value reads, as far as it covers the whole domain."""
        reach([(value, layout)], self._seen_below)

    def _seen_below(self, place: tuple[str, Layout]) -> list[tuple[str, Layout]]:
        value, layout = place
        node = self.graph[value]
        pieces = frozenset(p for axis in layout for p in axis)
        if pieces != self.domain or node.op == "reduce":
            return []
        if value not in self.placed:
            self.seen.setdefault(value, layout)
            if value in self.homes:
                return []
        if node.op not in ("map", "view"):
            return []
        if node.op == "map":
            return [(i, align(layout, self.graph[i].type.shape)) for i in node.inputs]
        try:
            return [(node.inputs[0], self._view_down(node, layout))]
        except Misaligned:
            return []

    def _view_up(self, node: Node, layout: Layout) -> Layout | None:
        view = node.payload
        assert isinstance(view, View)
        if view.kind == "slice" and layout[view.dims[0]]:
            # There is no coordinate for it here. What is in memory is read where it lies.
            if self._computes(node.inputs[0]):
                raise Refused(reason(Code.SLICED, op=node.origin.op, region=self.name))
            return None
        if view.kind == "slice":
            return layout
        if view.kind == "permute":
            return tuple(layout[d] for d in view.dims)
        if view.kind == "expand":
            return (*((),) * (len(node.type.shape) - len(layout)), *layout)
        return self.atoms.regroup(layout, node.type.shape)

    def _window_up(self, node: Node, layout: Layout) -> Layout | None:
        found = window_up(self.atoms, node, layout, self.graph[node.inputs[0]].type.shape)
        if found is None and self._computes(node.inputs[0]):
            raise Refused(reason(Code.OVERLAPS, op=node.origin.op, region=self.name))
        return found

    # ---- levels ----------------------------------------------------------------------------

    @property
    def reduces(self) -> list[str]:
        return [n for n in self.placed if self.graph[n].op == "reduce"]

    def _reduced(self, name: str) -> frozenset[int]:
        reduction = self.graph[name].payload
        assert isinstance(reduction, Reduction)
        return frozenset(flat(tuple(self.sources[name][axis] for axis in reduction.axes)))

    def _spans(self) -> list[frozenset[int]]:
        """The distinct sets of reduced atoms, the smallest first."""
        return sorted({self._reduced(n) for n in self.reduces}, key=len)

    @property
    def domain(self) -> frozenset[int]:
        return frozenset(a for layout in self.sources.values() for a in flat(layout))

    def _levels(self, node: Node) -> list[frozenset[int]]:
        """The sets of atoms over which a value may vary: elements, segments, rows."""
        return [self.domain, *(self.domain - span for span in self._spans())]

    def _check_levels(self, node: Node) -> None:
        spans, op = self._spans(), node.origin.op
        if any(not small <= large for small, large in pairwise(spans)):
            raise Refused(reason(Code.ROWS_DIFFER, op=op, region=self.name))
        if frozenset(flat(self.sources[node.name])) != self.domain:
            raise Refused(reason(Code.ROWS_DIFFER, op=op, region=self.name))
        if len(spans) > 2:
            raise Refused(reason(Code.LEVELS, op=op, region=self.name))
        if len(spans) == 2:
            self._check_two_levels(op, *spans)

    def _check_two_levels(self, op: str, inner: frozenset[int], whole: frozenset[int]) -> None:
        order = flat(self.sources[self.reduces[0]])
        elements = [a for a in order if a in whole]
        if elements[len(elements) - len(inner) :] != [a for a in order if a in inner]:
            raise Refused(reason(Code.ROWS_DIFFER, op=op, region=self.name))
        if order[-1] not in inner:
            raise Refused(reason(Code.SCATTERED, op=op, region=self.name))
        length, segment = self.atoms.size(whole), self.atoms.size(inner)
        known = isinstance(length, int) and isinstance(segment, int)
        if not known or not self.limits.two_levels(length, segment):
            raise Refused(reason(Code.TOO_LONG, op=op, elements=length))

    # ---- building the program ---------------------------------------------------------------

    def program(self) -> Program:
        """The finished loop nest that computes the wanted values."""
        return self._refining(lambda: self._build(list(self.wanted)))

    def draft(self) -> Program:
        """What the program would be if everything here had to be stored, as it now stands."""
        return self._refining(lambda: self._build(list(self.placed)))

    def _build(self, wanted: list[str]) -> Program:
        self.counting = False
        self.forget_places()
        needed = self._needed(wanted)
        self.order = [n for n in self.reduces if n in needed]
        spans = self._spans() if self.order else [frozenset[int]()]
        inner, whole = spans[0], spans[-1]
        stages = []
        for name in self.order:
            reduction = self.graph[name].payload
            assert isinstance(reduction, Reduction)
            expr = self.pull(self.graph[name].inputs[0], self.sources[name])
            convolves = self.graph[name].origin.op.startswith("conv")
            expr = _skipped(expr) if reduction.kind == "sum" and convolves else expr
            segment = len(spans) == 2 and self._reduced(name) == inner
            stages.append(Stage(name, reduction.kind, expr, segment))
        stores = []
        for w in wanted:
            layout = self.placed[w]
            access = self.atoms.access(w, self.graph[w].type.shape, layout)
            level = self._level(frozenset(flat(layout)), whole)
            stores.append(Store(self.pull(w, layout), access, level))
        used = {a: self.atoms.sizes[a] for a in self.domain}
        draft = Program(used, (), (), (), tuple(stages), tuple(stores), False, self.labels)
        first = self.order[0] if inner != whole else next(iter(self.sources))
        return nested(draft, flat(self.sources[first]), inner, whole, self.limits)

    def _needed(self, wanted: list[str]) -> set[str]:
        def below(name: str) -> tuple[str, ...]:
            passes = self.passes(name) and name not in self.barriers
            return self.graph[name].inputs if passes or name in self.placed else ()

        return set(reach(wanted, below))

    def _level(self, atoms: frozenset[int], whole: frozenset[int]) -> str:
        if atoms == self.domain:
            return "element"
        return "row" if atoms == self.domain - whole else "segment"

    def pull(self, value: str, layout: Layout, within: tuple[Range, ...] = ()) -> Expr:
        """The scalar expression of a value at these coordinates, down to buffers and stages.

        Outside of the ranges `within`, nothing may be read.
        """
        return fold((value, layout, within), self._open_down, self.pulled)

    def _open_down(self, place: Place) -> Opened[Place, Expr]:
        """What an expression is made of, and how."""
        value, layout, within = place
        node = self.graph[value]
        if node.op == "reduce" and value in self.placed:
            if self.placed[value] != layout:
                raise Misaligned
            return (), lambda _: acc(self.order.index(value))
        if node.op == "view" and value not in self.barriers:
            return [(node.inputs[0], self._view_down(node, layout), within)], lambda known: known[0]
        if node.op in LAZY and (value in self.placed or self.passes(value)):
            self._count(value, len(within))
            parts, combine = self._opened[node.op](self, node, layout, within)
            return parts, lambda known: self._labelled(combine(known), value)
        return (), lambda _: load(self.atoms.access(value, node.type.shape, layout, within))

    def _labelled(self, expr: Expr, value: str) -> Expr:
        self.labels.setdefault(expr, value)
        return expr

    def _open_map(
        self, node: Node, layout: Layout, within: tuple[Range, ...]
    ) -> Opened[Place, Expr]:
        payload = node.payload
        assert isinstance(payload, Expr)
        parts = [(i, align(layout, self.graph[i].type.shape), within) for i in node.inputs]

        def combine(known: Sequence[Expr]) -> Expr:
            def leaf(e: Expr) -> Expr | None:
                if e.op == "index":
                    return index(self.atoms.coordinate(layout[int(str(e.value))]))
                return known[int(str(e.value))] if e.op == "load" else None

            return substitute(payload, leaf)

        return parts, combine

    def _open_cat(
        self, node: Node, layout: Layout, within: tuple[Range, ...]
    ) -> Opened[Place, Expr]:
        """A choice among the parts by the place along their axis; only one of them is read."""
        assert isinstance(node.payload, Cat)
        axis = node.payload.axis
        at = self.atoms.coordinate(layout[axis])
        span = self.atoms.span(at)
        start: Dim = 0
        ranges: list[Range] = []
        parts: list[Place] = []
        for position, name in enumerate(node.inputs):
            size = self.graph[name].type.shape[axis]
            stop = as_dim(start + size)
            last = position == len(node.inputs) - 1
            own = Range(at, None if position == 0 else start, None if last else stop)
            if span is None or not own.never(*span):
                alone = span is not None and own.always(*span)
                window = self.atoms.window(layout[axis], as_dim(-start), 1, size)
                part = (*layout[:axis], window, *layout[axis + 1 :])
                ranges.append(own)
                parts.append((name, part, within if alone else (*within, own)))
            start = stop

        def combine(known: Sequence[Expr]) -> Expr:
            expr = known[-1]
            for own, part in reversed(list(zip(ranges[:-1], known[:-1], strict=True))):
                expr = call("where", inside(own), part, expr)
            return expr

        return parts, combine

    def _open_window(
        self, node: Node, layout: Layout, within: tuple[Range, ...]
    ) -> Opened[Place, Expr]:
        """The operand at an affine place; a number where that is outside of it."""
        windows, (name,) = node.payload, node.inputs
        assert isinstance(windows, Windows)
        shape = self.graph[name].type.shape
        rank = len(shape)
        ranges: list[Range] = []
        for slide, taps in zip(windows.slides, layout[rank:], strict=True):
            places, extent = node.type.shape[slide.axis], shape[slide.axis]
            assert isinstance(places, int) and isinstance(extent, int)
            terms = ((layout[slide.axis], slide.step), (taps, slide.spread))
            if not slide.inside(places, extent):
                ranges.append(self._tested(self.atoms.place(terms, -slide.before), extent))
        part = window_down(self.atoms, node, layout, shape)

        def combine(known: Sequence[Expr]) -> Expr:
            expr = known[0]
            for own in reversed(ranges):
                expr = call("where", inside(own), expr, windows.outside)
            return expr

        return [(name, part, (*within, *ranges))], combine

    def _tested(self, at: Coordinate, extent: int) -> Range:
        """Whether a place lies in an axis; what is certain is not asked."""
        span = self.atoms.span(at)
        if span is None:
            return Range(at, 0, extent)
        return Range(at, 0 if span[0] < 0 else None, extent if span[1] >= extent else None)

    _opened: ClassVar = {"map": _open_map, "cat": _open_cat, "window": _open_window}

    def _view_down(self, node: Node, layout: Layout) -> Layout:
        return view_down(self.atoms, node, layout, self.graph[node.inputs[0]].type.shape)

    def _refining(self, attempt: Callable[[], T]) -> T:
        """Run; where an atom has to be cut, cut it everywhere and run again."""
        while True:
            self.inferred.clear()
            self.computed.clear()
            try:
                return attempt()
            except NeedSplit as need:
                self.forget_places()
                outer, inner = self.atoms.split(need.atom, need.inner)
                for table in (self.placed, self.sources, self.seen):
                    for name, layout in table.items():
                        table[name] = replace_atom(layout, need.atom, (outer, inner))


def _skipped(expr: Expr) -> Expr:
    """Padding that is multiplied by a weight adds nothing, whatever the weight: as in libraries."""
    if expr.op != "mul" or expr.args[0].op != "where":
        return expr
    (test, value, outside), weight = expr.args[0].args, expr.args[1]
    if test.op != "inside" or outside is not const(0.0):
        return expr
    return call("where", test, _skipped(call("mul", value, weight)), outside)


def _apart(layout: Layout) -> Layout:
    """The layout itself; two axes along one atom, as in x * x.mT, would be the diagonal alone."""
    atoms = [piece for axis in layout for piece in axis if isinstance(piece, int)]
    if len(set(atoms)) != len(atoms):
        raise Misaligned
    return layout


def reduced_layout(layout: Layout, reduction: Reduction) -> Layout:
    gone = set(reduction.axes)
    return tuple(
        () if i in gone else axis
        for i, axis in enumerate(layout)
        if reduction.keepdim or i not in gone
    )
