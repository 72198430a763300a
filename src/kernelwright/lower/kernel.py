"""A planned region becomes a Kernel: everything the emitter needs to print it, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from kernelwright.graph import Graph
from kernelwright.lower.config import Config, configure
from kernelwright.lower.schedule import Schedule, schedule
from kernelwright.plan import Plan, Program, Region


@dataclass(frozen=True)
class Template:
    """A header under kernels/ and the function template in it: `symbol<Program, Config>`."""

    header: str
    symbol: str


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


SUFFIX = {"cuda": "cuh", "cpu": "hpp"}


def lower(plan: Plan, device: str) -> tuple[Kernel, ...]:
    """One kernel for each region that is not a library call."""
    return tuple(
        _lower(plan.graph, r, r.program, device) for r in plan.regions if r.program is not None
    )


def _lower(graph: Graph, region: Region, program: Program, device: str) -> Kernel:
    config = configure(graph, program, device)
    template = Template(f"{config.shape}.{SUFFIX[device]}", config.shape)
    return Kernel(region, program, schedule(program), config, template)
