"""A planned region becomes a Kernel: everything the emitter needs to print it, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from kernelwright.graph import Graph
from kernelwright.lower.config import Config, configure
from kernelwright.lower.schedule import Schedule, schedule
from kernelwright.plan import Plan, Program, Region


@dataclass(frozen=True)
class Template:
    """A header under kernels/ and the function template in it: `symbol<Program, Config>`.

    `reads_once` says that it reads each element of its row a single time.
    """

    symbol: str
    reads_once: bool

    def header(self, device: str) -> str:
        return f"{self.symbol}.{'cuh' if device == 'cuda' else 'hpp'}"


TEMPLATES = {
    t.symbol: t
    for t in (
        Template("pointwise", reads_once=True),
        Template("resident", reads_once=True),
        Template("streaming", reads_once=False),
        Template("strided", reads_once=False),
    )
}


@dataclass(frozen=True)
class Kernel:
    """A region, the template that runs it, how its program is scheduled and configured."""

    region: Region
    program: Program
    schedule: Schedule
    config: Config
    template: Template

    @property
    def name(self) -> str:
        return self.region.name

    def __str__(self) -> str:
        return f"{self.name}: {self.config}"


def lower(plan: Plan, device: str) -> tuple[Kernel, ...]:
    """One kernel for each region that is not a library call."""
    return tuple(
        _lower(plan.graph, r, r.program, device) for r in plan.regions if r.program is not None
    )


def _lower(graph: Graph, region: Region, program: Program, device: str) -> Kernel:
    config = configure(graph, program, device)
    return Kernel(region, program, schedule(program), config, TEMPLATES[config.shape])
