"""Axis pieces: how reshapes, permutations and broadcasts are seen through without moving data.

Every axis of a kernel's domain is a list of atoms. A reshape that splits or merges axes only
regroups atoms (splitting one where it must), so a value keeps its coordinates under any view. A
Layout gives, for each axis of a tensor, its atoms from the outermost in; an axis of size one has
none.
"""

from __future__ import annotations

from collections.abc import Iterable

from kernelwright.graph import Dim, Shape, as_dim, product
from kernelwright.plan.model import Access

Layout = tuple[tuple[int, ...], ...]


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

    def size(self, atoms: Iterable[int]) -> Dim:
        return product([self.sizes[a] for a in atoms])

    def regroup(self, layout: Layout, shape: Shape) -> Layout:
        """The coordinates of the same elements under another (row-major) shape."""
        flat = [a for axis in layout for a in axis]
        groups: list[tuple[int, ...]] = []
        for dim in reversed(shape):
            group: list[int] = []
            while self.size(group) != dim:
                if not flat:
                    raise Misaligned
                atom = flat.pop()
                missing = divide(dim, self.size(group))
                if self.sizes[atom] != missing and quotient(missing, self.sizes[atom]) is None:
                    if quotient(self.sizes[atom], missing) is None:
                        raise Misaligned
                    raise NeedSplit(atom, missing)
                group.insert(0, atom)
            groups.insert(0, tuple(group))
        if flat:
            raise Misaligned
        return tuple(groups)

    def access(self, buffer: str, shape: Shape, layout: Layout) -> Access:
        """The strides of a contiguous tensor along the atoms of its layout."""
        strides: dict[int, Dim] = {}
        step: Dim = 1
        for dim, axis in zip(reversed(shape), reversed(layout), strict=True):
            inside = step
            for atom in reversed(axis):
                strides[atom] = as_dim(strides.get(atom, 0) + inside)
                inside = as_dim(inside * self.sizes[atom])
            step = as_dim(step * dim)
        return Access(buffer, tuple(sorted(strides.items())))


def quotient(whole: Dim, part: Dim) -> Dim | None:
    """whole / part where it is a whole number for every batch size, else None."""
    if isinstance(whole, int) and isinstance(part, int):
        return whole // part if part and whole % part == 0 else None
    ratio = as_dim((whole / part).cancel() if not isinstance(whole, int) else whole / part)
    if isinstance(ratio, int):
        return ratio
    polynomial = ratio.as_poly(*ratio.free_symbols)
    if polynomial is None or not all(c.is_Integer for c in polynomial.coeffs()):
        return None
    return ratio


def divide(whole: Dim, part: Dim) -> Dim:
    result = quotient(whole, part)
    if result is None:
        raise Misaligned
    return result


def broadcast_axes(layouts: list[Layout], rank: int) -> list[list[tuple[int, ...]]]:
    """For each axis of the result, the non-empty coordinates that the operands offer."""
    columns: list[list[tuple[int, ...]]] = [[] for _ in range(rank)]
    for layout in layouts:
        for i, axis in enumerate(layout):
            if axis:
                columns[rank - len(layout) + i].append(axis)
    return columns


def align(layout: Layout, shape: Shape) -> Layout:
    """The coordinates of a broadcast operand of this shape inside a result's layout."""
    tail = layout[len(layout) - len(shape) :]
    return tuple(() if d == 1 else axis for d, axis in zip(shape, tail, strict=True))
