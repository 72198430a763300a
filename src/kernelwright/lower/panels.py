"""Row panels on the CPU: a library GEMM and the kernel after it take turns on a few rows at a time.

In: a Plan. Out: for each pair of steps that may share panels, how many rows a panel has. The GEMM
writes into one small buffer that stays in the cache, and the full product never exists. Measured
on 2 cores of a Neoverse-N1 (M 32768; N 512 and 1024; K 128 and 256): the same time as whole
products within 1%, for panels of 1 to 8 MB; what is saved is the memory of the product.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernelwright.graph import Dim, Graph, Node, hint
from kernelwright.plan.model import Plan, Program, Store
from kernelwright.plan.tails import Tail, tails

PANEL_BYTES = 4 << 20
FEWEST_ROWS = 512
MOST_ROWS = 4096
# Below this depth the GEMM is so short that the calls for its panels show.
SHALLOWEST = 128


@dataclass(frozen=True)
class Panel:
    """The contraction `product` feeds only `kernel`; both walk the batch in steps of `rows`."""

    product: str
    kernel: str
    rows: int

    def __str__(self) -> str:
        return f"takes turns with {self.kernel} on panels of {self.rows} rows"


def panels(plan: Plan) -> tuple[Panel, ...]:
    found = []
    for tail in tails(plan):
        rows = _panel_rows(plan.graph, tail)
        if rows is not None:
            found.append(Panel(tail.product.name, tail.kernel.name, rows))
    return tuple(found)


def _panel_rows(graph: Graph, tail: Tail) -> int | None:
    node = graph[tail.product.nodes[0]]
    if not tail.product.is_linear or tail.kernel.attention is not None:
        return None
    if len(tail.product.nodes) != 1 or not _walks_batch(graph, node, tail.program):
        return None
    width, depth = node.type.shape[1], graph[node.inputs[0]].type.shape[1]
    assert isinstance(width, int) and isinstance(depth, int)
    rows = min(MOST_ROWS, PANEL_BYTES // (width * node.type.dtype.itemsize))
    return rows if rows >= FEWEST_ROWS and depth >= SHALLOWEST else None


def _walks_batch(graph: Graph, node: Node, program: Program) -> bool:
    """The batch itself is the outermost row axis of the product and of all results, no other."""
    shape = node.type.shape
    if len(shape) != 2 or [str(shape[0])] != list(graph.symbols) or not program.rows:
        return False
    first, size = program.rows[0], shape[0]
    if program.sizes[first] != size or not program.is_local(first):
        return False
    for access in program.loads:
        if (access.buffer == node.name) != (first in access.atoms):
            return False
        if access.buffer == node.name and access.stride(first) != shape[1]:
            return False
    return all(_outermost(graph, store, first, size) for store in program.stores)


def _outermost(graph: Graph, store: Store, atom: int, size: Dim) -> bool:
    """Panels of a result are slices of it, so the batch must be its first axis."""
    strides = [s for _, s in store.access.strides]
    fixed = all(isinstance(s, int) for s in strides)
    shape = graph[store.access.buffer].type.shape
    return fixed and shape[0] == size and store.access.stride(atom) == max(hint(s) for s in strides)
