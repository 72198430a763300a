"""The kernels that make a product of few rows as values."""

from __future__ import annotations

from dataclasses import dataclass

from kernelwright.plan.model import Plan, Region


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
    def header(self) -> str:
        return "few_rows.cuh"

    @property
    def key(self) -> tuple[object, ...]:
        """What two kernels must have in common to be one."""
        return "few_rows", self.columns, self.depth, self.biased


@dataclass(frozen=True)
class ThinKernel(FewKernel):
    """The same for more rows, by float16 products: so many `planes` of each operand."""

    planes: int
    symbol: str

    @property
    def name(self) -> str:
        return f"{self.region.name}_thin"

    @property
    def header(self) -> str:
        return f"{self.symbol}.cuh"

    @property
    def key(self) -> tuple[object, ...]:
        return "thin", self.columns, self.depth, self.biased, self.planes


def few_kernels(plan: Plan) -> tuple[FewKernel, ...]:
    """Those of each library product that has such kernels beside it."""
    found: list[FewKernel] = []
    for region in plan.library:
        if not (region.few or region.thin):
            continue
        columns, depth = (int(str(d)) for d in plan.graph[region.operands[1]].type.shape)
        sizes = (columns, depth, region.bias is not None)
        if region.few:
            found.append(FewKernel(region, *sizes))
        if region.thin:
            loop = region.thin.loop
            assert loop.thin is not None
            found.append(ThinKernel(region, *sizes, loop.planes, loop.thin.kernel))
    return tuple(found)
