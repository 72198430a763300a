"""Axis pieces: how reshapes, permutations and broadcasts are seen through without moving data.

Every axis of a kernel's domain is a list of atoms. A reshape that splits or merges axes only
regroups atoms (splitting one where it must), so a value keeps its coordinates under any view. A
Layout gives, for each axis of a tensor, its atoms from the outermost in; an axis of size one has
none. Where a slice or a sliding window is pulled down to what it is taken from, the axis there is a
Window: atoms walk a part of it, each in steps of its own (an affine index).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kernelwright.graph import Dim, Node, Shape, View, Windows, as_dim, product, quotient
from kernelwright.plan.model import Access, Coordinate, Range


@dataclass(frozen=True)
class Window:
    """An axis of `size` places of which some are walked: from `start` on, in the sum of all steps.

    `terms` are pieces with the step of each. Of overlapping windows one term counts the places,
    the other the elements of a window.
    """

    terms: tuple[tuple[tuple[Piece, ...], int], ...]
    start: Dim
    size: Dim


Piece = int | Window
Axis = tuple[Piece, ...]
Layout = tuple[Axis, ...]


class NeedSplit(Exception):
    """An atom must be cut in two before this layout can be expressed."""

    def __init__(self, atom: int, inner: Dim) -> None:
        super().__init__(atom, inner)
        self.atom = atom
        self.inner = inner


class Misaligned(Exception):
    """Two factorisations of one axis have no common refinement, or coordinates differ.

    `view` names the reshape that could not be seen through, where there is one.
    """

    def __init__(self, view: str | None = None) -> None:
        super().__init__(view)
        self.view = view


class Atoms:
    """The sizes of a domain's atoms; layouts are regrouped against it."""

    def __init__(self) -> None:
        self.sizes: dict[int, Dim] = {}

    def fresh(self, size: Dim) -> int:
        atom = len(self.sizes)
        self.sizes[atom] = size
        return atom

    def layout(self, shape: Shape) -> Layout:
        """New coordinates for every axis of a tensor."""
        return tuple(() if d == 1 else (self.fresh(d),) for d in shape)

    def split(self, atom: int, inner: Dim) -> tuple[int, int]:
        """Cut an atom into an outer and an inner one; the caller replaces it in its layouts."""
        outer = self.fresh(divide(self.sizes[atom], inner))
        return outer, self.fresh(inner)

    def size(self, pieces: Iterable[Piece]) -> Dim:
        return product([self.extent(p) for p in pieces])

    def extent(self, piece: Piece) -> Dim:
        return piece.size if isinstance(piece, Window) else self.sizes[piece]

    def regroup(self, layout: Layout, shape: Shape) -> Layout:
        """The coordinates of the same elements under another (row-major) shape."""
        flat = [a for axis in layout for a in axis]
        groups: list[Axis] = []
        for dim in reversed(shape):
            group: list[Piece] = []
            while self.size(group) != dim:
                if not flat:
                    raise Misaligned
                atom = flat.pop()
                missing, extent = divide(dim, self.size(group)), self.extent(atom)
                if extent != missing and quotient(missing, extent) is None:
                    if quotient(extent, missing) is None:
                        raise Misaligned
                    if isinstance(atom, int):
                        raise NeedSplit(atom, missing)
                    flat += self._cut(atom, missing)
                    continue
                group.insert(0, atom)
            groups.insert(0, tuple(group))
        if flat:
            raise Misaligned
        return tuple(groups)

    def window(self, pieces: Axis, start: Dim, step: int, size: Dim) -> Axis:
        """An axis of `size` of which these pieces walk a part, or all."""
        return self.affine(((pieces, step),), start, size)

    def affine(self, terms: Iterable[tuple[Axis, int]], start: Dim, size: Dim) -> Axis:
        """An axis of `size` that is walked from `start` on, in the sum of these steps."""
        if size == 1:
            return ()
        plain: list[tuple[Axis, int]] = []
        for pieces, step in terms:
            if len(pieces) == 1 and isinstance(pieces[0], Window):
                inner = pieces[0]
                start = as_dim(start + step * inner.start)
                plain += [(below, step * by) for below, by in inner.terms]
            elif pieces:
                plain.append((pieces, step))
        joined = self._joined(plain)
        if start == 0 and len(joined) == 1 and joined[0][1] == 1:
            pieces = joined[0][0]
            if self.size(pieces) == size:
                return pieces
        return (Window(tuple(joined), start, size),)

    def _joined(self, terms: list[tuple[Axis, int]]) -> list[tuple[Axis, int]]:
        """Pieces that count on where others end are one: windows that lie side by side."""
        found: list[tuple[Axis, int]] = []
        for pieces, step in sorted(terms, key=lambda term: -term[1]):
            if found and found[-1][1] == as_dim(step * self.size(pieces)):
                found[-1] = ((*found[-1][0], *pieces), step)
            else:
                found.append((pieces, step))
        return found

    def _cut(self, window: Window, inner: Dim) -> list[Piece]:
        """A window on an axis that is two axes below, the inner one of size `inner`."""
        if len(window.terms) > 1:
            raise Misaligned
        pieces, step = window.terms[0] if window.terms else ((), 1)
        outer, count = divide(window.size, inner), self.size(pieces)
        numbers = (inner, count, window.start)
        if not all(isinstance(n, int) for n in numbers):
            raise Misaligned
        inner, count, start = (int(str(n)) for n in numbers)
        block, place = divmod(start, inner)
        if 0 <= place + step * (count - 1) < inner:
            inside = self.window(pieces, place, step, inner)
            return [*self.window((), block, 1, outer), *inside]
        if step % inner == 0:
            down = self.window(pieces, block, step // inner, outer)
            return [*down, *self.window((), place, 1, inner)]
        if inner % step or place >= step or count % (inner // step):
            raise Misaligned
        walked = inner // step
        down, across = self.regroup((pieces,), (count // walked, walked))
        inside = self.window(across, place, step, inner)
        return [*self.window(down, block, 1, outer), *inside]

    def access(
        self, buffer: str, shape: Shape, layout: Layout, within: tuple[Range, ...] = ()
    ) -> Access:
        """The strides of a contiguous tensor along the atoms of its layout.

        A range in which all places have the same address says nothing about it, unless it has none:
        a place that does not move may be beyond what is there.
        """
        strides: dict[int, Dim] = {}
        offset: Dim = 0
        step: Dim = 1
        for dim, axis in zip(reversed(shape), reversed(layout), strict=True):
            offset = as_dim(offset + self._spread(axis, step, strides))
            step = as_dim(step * dim)
        decisive = tuple(r for r in within if not r.at.atoms or r.at.atoms & strides.keys())
        return Access(buffer, Coordinate(tuple(sorted(strides.items())), offset), decisive)

    def coordinate(self, axis: Axis) -> Coordinate:
        """The place along one axis."""
        return self.place(((axis, 1),), 0)

    def place(self, terms: Iterable[tuple[Axis, int]], start: Dim) -> Coordinate:
        """The place that is reached from `start` in the sum of these steps."""
        strides: dict[int, Dim] = {}
        for pieces, step in terms:
            start = as_dim(start + self._spread(pieces, step, strides))
        return Coordinate(tuple(sorted(strides.items())), start)

    def _spread(self, axis: Axis, step: Dim, strides: dict[int, Dim]) -> Dim:
        """Add the strides of an axis whose neighbours are `step` apart; returns the offset."""
        offset: Dim = 0
        for piece in reversed(axis):
            if isinstance(piece, Window):
                for pieces, by in piece.terms:
                    offset = as_dim(offset + self._spread(pieces, as_dim(step * by), strides))
                offset = as_dim(offset + step * piece.start)
            else:
                strides[piece] = as_dim(strides.get(piece, 0) + step)
            step = as_dim(step * self.extent(piece))
        return offset

    def span(self, at: Coordinate) -> tuple[int, int] | None:
        """The first and the last value of a coordinate, where sizes and strides are known."""
        reach = [(s, self.sizes[a]) for a, s in at.strides]
        if not all(isinstance(n, int) for n in (at.offset, *(n for pair in reach for n in pair))):
            return None
        far = [int(str(s)) * (int(str(size)) - 1) for s, size in reach]
        first = int(str(at.offset))
        return first + sum(min(0, f) for f in far), first + sum(max(0, f) for f in far)


def divide(whole: Dim, part: Dim) -> Dim:
    result = quotient(whole, part)
    if result is None:
        raise Misaligned
    return result


def broadcast_axes(layouts: list[Layout], rank: int) -> list[list[Axis]]:
    """For each axis of the result, the non-empty coordinates that the operands offer."""
    columns: list[list[Axis]] = [[] for _ in range(rank)]
    for layout in layouts:
        for i, axis in enumerate(layout):
            if axis:
                columns[rank - len(layout) + i].append(axis)
    return columns


def align(layout: Layout, shape: Shape) -> Layout:
    """The coordinates of a broadcast operand of this shape inside a result's layout."""
    tail = layout[len(layout) - len(shape) :]
    return tuple(() if d == 1 else axis for d, axis in zip(shape, tail, strict=True))


def flat(layout: Layout) -> list[int]:
    """The atoms of a layout of what a region computes, which has no windows."""
    atoms = [a for axis in layout for a in axis]
    assert not any(isinstance(a, Window) for a in atoms)
    return [a for a in atoms if isinstance(a, int)]


def replace_atom(layout: Layout, atom: int, parts: tuple[int, int]) -> Layout:
    def cut(piece: Piece) -> Axis:
        return parts if piece == atom else (piece,)

    return tuple(tuple(p for a in axis for p in cut(a)) for axis in layout)


def window_down(atoms: Atoms, node: Node, layout: Layout, shape: Shape) -> Layout:
    """The coordinates of what windows look at, which has this shape, from those of the windows."""
    windows = node.payload
    assert isinstance(windows, Windows)
    axes = list(layout[: len(shape)])
    for slide, taps in zip(windows.slides, layout[len(shape) :], strict=True):
        terms = ((layout[slide.axis], slide.step), (taps, slide.spread))
        axes[slide.axis] = atoms.affine(terms, -slide.before, shape[slide.axis])
    return tuple(axes)


def window_up(atoms: Atoms, node: Node, layout: Layout, shape: Shape) -> Layout | None:
    """The coordinates of windows from those of what they look at; None: they have none.

    They have some where they lie side by side: an axis is then cut in two.
    """
    windows = node.payload
    assert isinstance(windows, Windows)
    axes, taps = list(layout), []
    for slide in windows.slides:
        places = node.type.shape[slide.axis]
        if not slide.exact(places, shape[slide.axis]):
            return None
        axes[slide.axis], tap = atoms.regroup((layout[slide.axis],), (places, slide.size))
        taps.append(tap)
    return (*axes, *taps)


def view_down(atoms: Atoms, node: Node, layout: Layout, shape: Shape) -> Layout:
    """The coordinates of what a view looks at, which has this shape, from those of the view."""
    view = node.payload
    assert isinstance(view, View)
    if view.kind == "permute":
        return tuple(layout[view.dims.index(i)] for i in range(len(shape)))
    if view.kind == "expand":
        return align(layout, shape)
    if view.kind == "slice":
        axis = view.dims[0]
        window = atoms.window(layout[axis], view.start, view.step, shape[axis])
        return (*layout[:axis], window, *layout[axis + 1 :])
    try:
        return atoms.regroup(layout, shape)
    except Misaligned:
        raise Misaligned(node.name) from None
