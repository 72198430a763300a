"""The kernel after a library's product runs the program that a generated one has as its epilogue.

In: a product's kernel, and the kernel that the planner meant for the product in memory. Out: a
TailKernel, which has no program of its own: kernels/in_memory.cuh makes row programs of epilogues.
Only how rows are grouped is decided here, as the planner did.

A kernel whose lanes lie along another axis than the product's rows (it writes a transpose) keeps
its own program: an epilogue walks the product, a kernel what it stores.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kernelwright.graph import Graph
from kernelwright.lower.config import configure
from kernelwright.lower.kernel import TEMPLATES, GemmKernel, Kernel
from kernelwright.plan.model import Program, Region, flat_run
from kernelwright.targets.target import Target


@dataclass(frozen=True)
class TailKernel(Kernel):
    """A kernel over the product in memory, by the program of the product `of`.

    `grouping` is the template of in_memory.cuh that says what a row is; empty: one of the product.
    """

    of: GemmKernel
    grouping: str

    @property
    def reads(self) -> list[str]:
        return [self.of.gemm.product, *self.of.reads]

    @property
    def places(self) -> list[str]:
        return self.of.places


def tail(graph: Graph, region: Region, of: GemmKernel, target: Target) -> TailKernel | None:
    """The region's kernel by the program of the product before it, if that walks memory as well."""
    own, fitted = region.program, of.program
    assert own is not None
    if own.strided or own.inner[-1] != fitted.inner[-1]:
        return None
    grouping, program = _grouped(fitted)
    config = configure(graph, program, target)
    return TailKernel(
        region, program, of.schedule, config, TEMPLATES[config.shape], of, grouping
    )  # fmt: skip


def _grouped(program: Program) -> tuple[str, Program]:
    """As many rows as there can be; without reductions, one."""
    order = (*program.rows, *program.elements)
    if not program.stages:
        if flat_run(order, program.sizes, program.coordinates) == order:
            return "Flat", replace(program, rows=(), outer=(), inner=order)
        return "", program
    if program.segmented and all(s.segment for s in program.stages):
        return "Segments", replace(
            program,
            rows=(*program.rows, *program.outer),
            outer=(),
            stages=tuple(replace(s, segment=False) for s in program.stages),
            stores=tuple(
                replace(s, level="row") if s.level == "segment" else s for s in program.stores
            ),
        )
    return "", program
