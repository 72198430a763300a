"""Row panels on the CPU: a library GEMM and the kernel after it take turns on a few rows at a time.

In: a Plan. Out: for each pair of steps that may share panels, how many rows a panel has. The GEMM
writes into one small buffer that stays in the cache, so the fused tail never reads its operand
from memory, and the full product never exists. Measured on 2 cores (M 16384, N 512, K 256): the
panels cost the GEMM nothing at 512 rows or more, and 1.5 times its time at 256.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernelwright.graph import Graph, Node
from kernelwright.plan import Plan, Program, Region

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


def panels(plan: Plan) -> tuple[Panel, ...]:
    found = []
    for product, kernel in zip(plan.regions, plan.regions[1:], strict=False):
        rows = _panel_rows(plan.graph, product, kernel)
        if rows is not None:
            found.append(Panel(product.name, kernel.name, rows))
    return tuple(found)


def _panel_rows(graph: Graph, product: Region, kernel: Region) -> int | None:
    node = graph[product.nodes[0]]
    if product.kind != "contract" or kernel.program is None or len(product.nodes) != 1:
        return None
    if product.call is None or product.call.target != "torch.ops.aten.linear.default":
        return None
    if not _feeds_only(graph, node, kernel) or not _walks_batch(graph, node, kernel.program):
        return None
    width, depth = node.type.shape[1], graph[node.inputs[0]].type.shape[1]
    assert isinstance(width, int) and isinstance(depth, int)
    rows = min(MOST_ROWS, PANEL_BYTES // (width * node.type.dtype.itemsize))
    return rows if rows >= FEWEST_ROWS and depth >= SHALLOWEST else None


def _feeds_only(graph: Graph, node: Node, kernel: Region) -> bool:
    inside = set(kernel.nodes)
    outside = node.name in graph.results
    return not outside and all(user in inside for user in graph.users[node.name])


def _walks_batch(graph: Graph, node: Node, program: Program) -> bool:
    """The batch is the outermost row axis of the product and of every result, and no other."""
    shape = node.type.shape
    if len(shape) != 2 or isinstance(shape[0], int) or len(graph.symbols) != 1 or not program.rows:
        return False
    first, size = program.rows[0], shape[0]
    if program.sizes[first] != size or len([s for s in program.sizes.values() if s == size]) != 1:
        return False
    for access in program.loads:
        if access.buffer != node.name and first in access.atoms:
            return False
    return all(
        store.access.stride(first) == max(s for _, s in store.access.strides)
        and graph[store.access.buffer].type.shape[0] == size
        for store in program.stores
        if all(isinstance(s, int) for _, s in store.access.strides)
    ) and all(isinstance(s, int) for store in program.stores for _, s in store.access.strides)
