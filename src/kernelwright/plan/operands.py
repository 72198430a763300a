"""A contraction as a batch of matrix products over memory, or why it is none.

In: a contract node. Out: its Form: for each operand the buffer that it lies in and its strides. The
views in front of an operand are seen through: `x @ W.T` reads W as it lies. Where the strides of
what is below are too many (a depth in two pieces, three axes of batch), the view itself is an
operand, which emitted code makes dense.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kernelwright.graph import Affine, Contraction, Dim, Graph, Node, as_dim, hint, product
from kernelwright.plan.domain import (
    Atoms,
    Layout,
    Misaligned,
    NeedSplit,
    flat,
    replace_atom,
    view_down,
)
from kernelwright.plan.model import Coordinate, Operand


@dataclass(frozen=True)
class Form:
    """`batch` products, an outer and an inner number of them, of matrices that lie as they lie."""

    left: Operand
    right: Operand
    batch: tuple[Dim, Dim]
    rows: Dim
    columns: Dim
    depth: Dim

    @property
    def all_rows(self) -> Dim:
        return product([*self.batch, self.rows])


class Scattered(Exception):
    """The strides of an operand are too many for a product of matrices."""


Takes = Callable[["Form"], bool]


def form_of(graph: Graph, node: Node, takes: Takes) -> Form | None:
    """The product with as many views as possible seen through; None: it is no matrix product.

    `takes` says whether a kernel can read operands that lie so.
    """
    contraction = node.payload
    assert isinstance(contraction, Contraction)
    if not contraction.is_product:
        return None
    for through in ((True, True), (False, True), (True, False), (False, False)):
        try:
            form = _Walk(graph, node, contraction, through).form()
        except (Scattered, Misaligned):
            continue
        if takes(form):
            return form
    return None


class _Walk:
    def __init__(
        self, graph: Graph, node: Node, contraction: Contraction, through: tuple[bool, bool]
    ) -> None:
        self.graph = graph
        self.node = node
        self.through = through
        self.atoms = Atoms()
        numbers = [None if d == 1 else self.atoms.fresh(d) for d in contraction.sizes]

        def layout(index: tuple[Affine, ...]) -> Layout:
            found = [[numbers[a] for a, _ in p.terms] for p in index]
            return tuple(tuple(n for n in axis if n is not None) for axis in found)

        self.layouts = {
            "left": layout(contraction.left),
            "right": layout(contraction.right),
            "out": layout(contraction.out),
        }

    def form(self) -> Form:
        """Descend until no atom has to be cut any more; a cut holds for all three tensors."""
        while True:
            try:
                names = self.node.inputs[:2]
                left = self._descend(names[0], self.layouts["left"], self.through[0])
                right = self._descend(names[1], self.layouts["right"], self.through[1])
                return self._grouped(left, right)
            except NeedSplit as need:
                parts = self.atoms.split(need.atom, need.inner)
                for name, layout in self.layouts.items():
                    self.layouts[name] = replace_atom(layout, need.atom, parts)

    def _descend(self, name: str, layout: Layout, through: bool) -> tuple[str, Coordinate]:
        node = self.graph[name]
        while through and node.op == "view":
            below = self.graph[node.inputs[0]]
            try:
                layout = view_down(self.atoms, node, layout, below.type.shape)
            except Misaligned:
                break
            node = below
        access = self.atoms.access(node.name, node.type.shape, layout)
        return node.name, access.at

    def _grouped(self, left: tuple[str, Coordinate], right: tuple[str, Coordinate]) -> Form:
        """Axes of the result, from the outermost: batches, then rows, then columns."""
        ours, theirs = self._members("left"), self._members("right")
        order = flat(self.layouts["out"])
        columns = _trailing(order, lambda a: a not in ours)
        order = order[: len(order) - len(columns)]
        rows = _trailing(order, lambda a: a not in theirs)
        outer = order[: len(order) - len(rows)]
        pair = left[1], right[1]
        depth = sorted(ours & theirs - self._members("out"), key=_by_stride(pair))
        row_runs = self._runs(rows, pair)
        batch = [*self._runs(outer, pair), *row_runs[:-1]]
        while len(batch) > 1 and self._continues(batch[-2], batch[-1], pair):
            batch[-2:] = [[*batch[-2], *batch[-1]]]
        column_runs, depth_runs = self._runs(columns, pair), self._runs(depth, pair)
        if len(batch) > 2 or len(column_runs) > 1 or len(depth_runs) > 1:
            raise Scattered
        batch = [[], [], *batch][-2:]
        row_run = row_runs[-1] if row_runs else []
        column_run = column_runs[-1] if column_runs else []
        depth_run = depth_runs[-1] if depth_runs else []

        def operand(of: tuple[str, Coordinate], run: list[int]) -> Operand:
            name, at = of
            outer, inner = (at.stride(r[-1]) if r else 0 for r in batch)
            deep = at.stride(depth_run[-1]) if depth_run else 1
            row = at.stride(run[-1]) if run else as_dim(deep * count[4])
            return Operand(name, at.offset, outer, inner, row, deep)

        count = [self.atoms.size(r) for r in (*batch, row_run, column_run, depth_run)]
        return Form(
            operand(left, row_run),
            operand(right, column_run),
            (count[0], count[1]),
            count[2],
            count[3],
            count[4],
        )

    def _members(self, name: str) -> set[int]:
        return set(flat(self.layouts[name]))

    def _runs(self, order: list[int], pair: tuple[Coordinate, Coordinate]) -> list[list[int]]:
        """Neighbouring axes that both operands walk as one."""
        runs: list[list[int]] = []
        for atom in order:
            if runs and self._continues(runs[-1], [atom], pair):
                runs[-1].append(atom)
            else:
                runs.append([atom])
        return runs

    def _continues(
        self, outer: list[int], inner: list[int], pair: tuple[Coordinate, Coordinate]
    ) -> bool:
        size = self.atoms.size(inner)
        return all(at.stride(outer[-1]) == as_dim(at.stride(inner[-1]) * size) for at in pair)


def _trailing(order: list[int], belongs: Callable[[int], bool]) -> list[int]:
    start = len(order)
    while start and belongs(order[start - 1]):
        start -= 1
    return order[start:]


def _by_stride(pair: tuple[Coordinate, Coordinate]) -> Callable[[int], int]:
    return lambda atom: -hint(pair[0].stride(atom))
