"""What compiling a Problem gives: every value on the way, and how it shows itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from kernelwright.graph import Graph, hint
from kernelwright.ledger import LedgerRow
from kernelwright.live import instantiate
from kernelwright.lower.kernel import Kernel
from kernelwright.lower.lowered import Lowered
from kernelwright.lower.panels import Panel
from kernelwright.plan.model import Plan
from kernelwright.problem import Problem
from kernelwright.shown import Shown
from kernelwright.step import Trained
from kernelwright.targets.target import Target


@dataclass(frozen=True)
class RegionRow:
    """One step of the emitted forward, with its estimates at a typical batch size."""

    name: str
    kind: str
    ops: str
    bytes: int
    flops: int
    launches: int
    why: str


@dataclass(frozen=True)
class Compiled(Shown):
    """Everything that compiling a Problem gave: the emitted source, and the reasons for it.

    `trained` is its backward, and `untrained` why there is none.
    """

    problem: Problem
    captured: Graph
    primitives: Graph
    target: Target
    planned: Plan
    lowered: Lowered
    rewrites: tuple[str, ...]
    refused_laws: tuple[str, ...]
    ledger: tuple[LedgerRow, ...]
    source: str
    trained: Trained | None = None
    untrained: str = ""

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        return self.lowered.kernels

    @property
    def panels(self) -> tuple[Panel, ...]:
        return self.lowered.panels

    @property
    def regions(self) -> tuple[RegionRow, ...]:
        rows, batch = [], self.problem.batch
        for r in self.planned.regions:
            origins = dict.fromkeys(self.planned.graph[n].origin.op for n in r.nodes)
            ops = ", ".join(o for o in origins if o != "getitem")
            cost = (hint(r.bytes, batch), hint(r.flops, batch), r.launches)
            turns = [str(p) for p in self.panels if p.product == r.name]
            turns += [str(s) for s in self.lowered.slices if s.product == r.name]
            why = "; ".join([str(r.why), *turns])
            rows.append(RegionRow(r.name, r.kind, ops, *cost, why))
        return tuple(rows)

    @property
    def shared(self) -> tuple[str, ...]:
        """Values with several readers: which are stored, and which are computed again."""
        return tuple(str(value) for value in self.planned.shared)

    @property
    def refusals(self) -> tuple[str, ...]:
        """Laws that nearly applied, and fusions that were not made."""
        return tuple(dict.fromkeys([*self.refused_laws, *map(str, self.planned.refusals)]))

    @property
    def again(self) -> tuple[str, ...]:
        """What was decided again after a first plan, and why."""
        return self.planned.again

    @property
    def fused(self) -> bool:
        """Whether any kernel of ours runs."""
        return bool(self.lowered.kernels or self.lowered.few)

    def to_json(self) -> dict[str, Any]:
        return {
            "problem": str(self.problem),
            "rewrites": list(self.rewrites),
            "ledger": [asdict(row) for row in self.ledger],
            "regions": [asdict(row) for row in self.regions],
            "shared": list(self.shared),
            "refusals": list(self.refusals),
            "again": list(self.again),
            "kernels": [str(k) for k in self.kernels],
        }

    def instantiate(self) -> nn.Module:
        """ModelNew over the parameters of the module that was compiled."""
        return instantiate(self.problem, self.source)

    def __str__(self) -> str:
        if self.trained is None:
            return str(self.planned)
        return f"{self.planned}\n{self.trained.told}"

    def __repr__(self) -> str:
        counts = f"{len(self.planned.regions)} steps, {len(self.kernels)} kernels"
        return f"Compiled({self.problem.name} on {self.problem.device}: {counts})"
