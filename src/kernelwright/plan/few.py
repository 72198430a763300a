"""Which products of few rows have a kernel of their own, and up to how many rows each.

With few rows a product takes as long as reading its weight, if nothing else stands in its way.

Up to eight rows, or sixteen where the weight is then in the L2 cache, plain float32 arithmetic
keeps up with the memory (kernels/few_rows.cuh). The library's float32 kernels take longer (H200,
8192 x 8192: 99 us for one row and 147 us for two to eight, against 73 and 76), those for TF32 a
little (85 us), those for half precision as long as ours: they stay. A weight so small that all of
the product is little work may have more rows: the library takes two kernels for it.

From there on it takes tensor cores (targets/ names the kernel). Where that pays, and into how many
parts it cuts the depth, the target says.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from kernelwright.graph import Graph, hint, product
from kernelwright.plan.model import Plan, Region, ThinRows
from kernelwright.plan.reasons import Code, reason
from kernelwright.targets.target import Loop, Target

ROWS_AT_ONCE = 8
CACHED_BYTES = 32 << 20
# Of a product that is little work, and its rows.
LITTLE, MOST_ROWS = 1 << 24, 128
VECTOR = 4


def few_rows(plan: Plan, target: Target, precision: str) -> Plan:
    """The plan with these kernels beside the library's products, wherever the library has them."""
    loop = target.loop_for(torch.float32, precision)

    def steps(regions: tuple[Region, ...]) -> tuple[Region, ...]:
        known = [r.with_library(steps) for r in regions]
        return tuple(with_few_rows(plan.graph, r, loop) for r in known)

    return replace(plan, regions=steps(plan.regions))


def with_few_rows(graph: Graph, region: Region, loop: Loop | None) -> Region:
    """The region with the numbers of rows up to which such kernels make its product."""
    if not region.is_linear:
        return region
    left, right = (graph[name].type for name in region.operands)
    columns, depth = right.shape
    if left.dtype != torch.float32 or right.dtype != torch.float32:
        return region
    if not isinstance(columns, int) or not isinstance(depth, int) or depth % VECTOR or not depth:
        return region
    fewest = hint(product(left.shape[:-1]), batch=1)
    few = _few(columns, depth)
    if fewest <= few:
        region = replace(region, few=few, why=reason(Code.FEW, most=few, rest=str(region.why)))
    thin = _thin(loop, columns, depth)
    if thin is None or fewest > thin.most:
        return region
    return replace(region, thin=thin, why=reason(Code.THIN, most=thin.most, rest=str(region.why)))


def _few(columns: int, depth: int) -> int:
    """The rows up to which plain arithmetic is as fast as anything."""
    cached = ROWS_AT_ONCE * (2 if 4 * columns * depth <= CACHED_BYTES else 1)
    little = min(MOST_ROWS, LITTLE // (columns * depth)) if columns else 0
    return max(cached, little // ROWS_AT_ONCE * ROWS_AT_ONCE)


def _thin(loop: Loop | None, columns: int, depth: int) -> ThinRows | None:
    """For as many rows as one number of parts is best, one entry."""
    if loop is None or loop.thin is None or not loop.thin.pays(columns, depth):
        return None
    parts: list[tuple[int, int]] = []
    for shape in loop.thin.shapes:
        count = loop.thin.parts(shape.rows, columns, depth)
        if parts and parts[-1][1] == count:
            parts.pop()
        parts.append((shape.rows, count))
    return ThinRows(loop, tuple(parts))
