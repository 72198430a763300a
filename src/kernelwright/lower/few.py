"""The kernels that make a product of a few rows (kernels/few_rows.cuh), as values."""

from __future__ import annotations

from dataclasses import dataclass

from kernelwright.plan import Plan, Region


@dataclass(frozen=True)
class FewKernel:
    """A product of up to a few rows with a weight of these sizes, with or without a bias."""

    region: Region
    columns: int
    depth: int
    biased: bool

    @property
    def name(self) -> str:
        return f"{self.region.name}_few_rows"

    @property
    def key(self) -> tuple[object, ...]:
        """What two kernels must have in common to be one."""
        return "few_rows", self.columns, self.depth, self.biased


def few_kernels(plan: Plan) -> tuple[FewKernel, ...]:
    """One for each library product that has such a kernel beside it."""
    found = []
    for region in plan.library:
        if region.few:
            columns, depth = plan.graph[region.operands[1]].type.shape
            biased = region.bias is not None
            found.append(FewKernel(region, int(str(columns)), int(str(depth)), biased))
    return tuple(found)
