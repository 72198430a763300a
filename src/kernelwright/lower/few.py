"""The kernels beside a library product or convolution, as values.

On a GPU they make products of few rows (few_rows.cuh, and what a target names), on a CPU those of
any number (product.hpp) and small convolutions (direct.hpp).
"""

from __future__ import annotations

from dataclasses import dataclass

from kernelwright.graph import Dim
from kernelwright.plan.convolutions import ConvForm
from kernelwright.plan.model import HostProduct, Plan, Region


@dataclass(frozen=True)
class BesideKernel:
    """What a kernel of its own makes, with or without a bias."""

    region: Region
    biased: bool

    @property
    def name(self) -> str:
        raise NotImplementedError

    @property
    def header(self) -> str:
        """The file of the library that it needs."""
        raise NotImplementedError

    @property
    def told(self) -> tuple[dict[str, Dim], str]:
        """Its sizes and what it is good for, as a report shows them."""
        raise NotImplementedError

    @property
    def key(self) -> tuple[object, ...]:
        """What two kernels must have in common to be one."""
        raise NotImplementedError


@dataclass(frozen=True)
class HostKernel(BesideKernel):
    """A product on the CPU; sizes and strides that are not known are numbers of the launch."""

    product: HostProduct

    @property
    def name(self) -> str:
        return f"{self.region.name}_by_tiles"

    @property
    def header(self) -> str:
        return "product.hpp"

    @property
    def told(self) -> tuple[dict[str, Dim], str]:
        made = self.product
        sizes: dict[str, Dim] = {"columns": made.columns, "depth": made.depth}
        return sizes, f"a product by a kernel of ours for {'; '.join(map(str, made.ways))}"

    @property
    def dims(self) -> dict[str, Dim]:
        """Every size and stride, by the names that the launcher gives them."""
        made = self.product
        dims: dict[str, Dim] = {
            "outer": made.batch[0],
            "inner": made.batch[1],
            "rows": made.rows,
            "columns": made.columns,
            "depth": made.depth,
        }
        for side, operand in (("left", made.left), ("right", made.right)):
            dims[f"{side}_offset"] = operand.offset
            dims[f"{side}_outer"] = operand.outer
            dims[f"{side}_inner"] = operand.inner
            dims[f"{side}_row"] = operand.row
            dims[f"{side}_depth"] = operand.depth
        return dims

    @property
    def numbers(self) -> tuple[Dim, ...]:
        """The dims that a call brings, each once."""
        return tuple(dict.fromkeys(d for d in self.dims.values() if not isinstance(d, int)))

    @property
    def key(self) -> tuple[object, ...]:
        places = {number: f"n{i}" for i, number in enumerate(self.numbers)}
        dims = tuple(places.get(d, d) for d in self.dims.values())
        return "host", dims, self.biased


@dataclass(frozen=True)
class DirectKernel(BesideKernel):
    """A convolution of these sizes for any number of samples."""

    form: ConvForm

    @property
    def name(self) -> str:
        return f"{self.region.name}_direct"

    @property
    def header(self) -> str:
        return "direct.hpp"

    @property
    def told(self) -> tuple[dict[str, Dim], str]:
        form = self.form
        sizes: dict[str, Dim] = {"channels": form.cin, "filters": form.cout, "groups": form.groups}
        return sizes, "a small convolution, which the library is slow to begin"

    @property
    def key(self) -> tuple[object, ...]:
        return "direct", self.form.unnamed, self.biased


@dataclass(frozen=True)
class FewKernel(BesideKernel):
    """A product of up to a few rows with a weight of these sizes."""

    columns: int
    depth: int

    @property
    def name(self) -> str:
        return f"{self.region.name}_few_rows"

    @property
    def header(self) -> str:
        return "few_rows.cuh"

    @property
    def told(self) -> tuple[dict[str, Dim], str]:
        sizes: dict[str, Dim] = {"columns": self.columns, "depth": self.depth}
        return sizes, "a product of few rows, which reads its weight once"

    @property
    def key(self) -> tuple[object, ...]:
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


def few_kernels(plan: Plan) -> tuple[BesideKernel, ...]:
    """Those of each library call that has such kernels beside it."""
    found: list[BesideKernel] = []
    for region in plan.library:
        if region.host is not None:
            found.append(HostKernel(region, region.bias is not None, region.host))
        if region.direct is not None:
            found.append(DirectKernel(region, region.bias is not None, region.direct.form))
        if not (region.few or region.thin):
            continue
        columns, depth = (int(str(d)) for d in plan.graph[region.operands[1]].type.shape)
        sizes = (region.bias is not None, columns, depth)
        if region.few:
            found.append(FewKernel(region, *sizes))
        if region.thin:
            loop = region.thin.loop
            assert loop.thin is not None
            found.append(ThinKernel(region, *sizes, loop.planes, loop.thin.kernel))
    return tuple(found)
