"""A training step as it is emitted: a forward that keeps values and a backward, both lowered."""

from __future__ import annotations

from dataclasses import dataclass

from kernelwright.graph import SOURCES, Graph
from kernelwright.lower.lowered import Lowered
from kernelwright.plan.model import Plan
from kernelwright.training.partition import Training


@dataclass(frozen=True)
class TrainingStep:
    """What is kept, and for each of the two graphs its plan and what was lowered of it."""

    found: Training
    forward: Plan
    saving: Lowered
    backward: Plan
    lowered: Lowered

    @property
    def parts(self) -> tuple[tuple[Graph, Lowered], ...]:
        """What has kernels beside those of the forward without gradients."""
        return ((self.forward.graph, self.saving), (self.backward.graph, self.lowered))

    @property
    def sources(self) -> frozenset[str]:
        """The parameters and buffers that either of them reads."""
        found: set[str] = set()
        for plan in (self.forward, self.backward):
            graph = plan.graph
            names = {graph.base(name) for region in plan.regions for name in region.reads}
            found |= {n for n in names if n in graph.by_name and graph[n].op in SOURCES[1:3]}
        return frozenset(found)
