"""Which products have a kernel of their own for a few rows (kernels/few_rows.cuh).

With few rows a product takes as long as reading its weight. The library's float32 kernels take
longer (H200, 8192 x 8192: 99 us for one row and 147 us for two to eight, against 73 and 76), those
for TF32 a little (85 us), those for half precision as long as ours: they stay. The kernel takes
eight rows at a time; a second pass pays where the weight is still in the L2 cache.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from kernelwright.graph import Graph, hint, product
from kernelwright.plan.model import Code, Plan, Region, reason

ROWS_AT_ONCE = 8
CACHED_BYTES = 32 << 20
VECTOR = 4


def with_few_rows(graph: Graph, region: Region) -> Region:
    """The region with the number of rows up to which that kernel makes its product, if there is."""
    if not region.is_linear:
        return region
    left, right = (graph[name].type for name in region.operands)
    columns, depth = right.shape
    if left.dtype != torch.float32 or right.dtype != torch.float32:
        return region
    if not isinstance(columns, int) or not isinstance(depth, int) or depth % VECTOR or not depth:
        return region
    most = ROWS_AT_ONCE * (2 if 4 * columns * depth <= CACHED_BYTES else 1)
    if hint(product(left.shape[:-1]), batch=1) > most:
        return region
    return replace(region, few=most, why=reason(Code.FEW, most=most, rest=str(region.why)))


def few_rows(plan: Plan) -> Plan:
    """The plan with these kernels beside the library's products, wherever the library has them."""

    def step(region: Region) -> Region:
        if region.gemm is None:
            return with_few_rows(plan.graph, region)
        library = tuple(step(r) for r in region.gemm.library)
        return replace(region, gemm=replace(region.gemm, library=library))

    return replace(plan, regions=tuple(step(r) for r in plan.regions))
