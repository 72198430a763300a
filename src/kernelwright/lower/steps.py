"""The host side of a model as data: what a call does, in order.

In: a Plan, its kernels and panels. Out: Steps. A step allocates, launches a kernel, calls the
library, or chooses between ways by guards on sizes and on the machine. Everything that the host
decides is decided here; emit/steps.py only prints it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv

from kernelwright.graph import Call, Dim, as_dim, product
from kernelwright.lower.few import FewKernel
from kernelwright.lower.kernel import GemmKernel, Kernel
from kernelwright.lower.panels import Panel
from kernelwright.plan import Buffer, Gemm, Plan, Region
from kernelwright.targets import Target

PANEL = 64  # rows and depth of the panels that operands are split into
# What loops that split work with besides the operands; the others have null pointers there.
SPLIT_OPERANDS = ("left_halves", "left_scales", "right_halves", "right_scales", "progress")


@dataclass(frozen=True)
class Guard:
    """A condition: on the machine, on the file's switch, or on a size against a limit."""

    kind: str
    size: Dim = 0
    limit: int = 0

    def __str__(self) -> str:
        return f"{self.size} {self.kind} {self.limit}" if self.limit else self.kind


GENERATED = Guard("generated")
HOPPER = Guard("hopper")


@dataclass(frozen=True)
class Alloc:
    """Memory without values."""

    buffer: Buffer

    def __str__(self) -> str:
        shape = " x ".join(str(d) for d in self.buffer.shape)
        return f"{self.buffer.name} = {shape} of {str(self.buffer.dtype)[6:]}"


@dataclass(frozen=True)
class Kept:
    """A weight in halves: those that freeze() made, or memory for them and for what they scale by.

    `frozen` is the name of the flag that says which.
    """

    target: str
    weight: str
    halves: Buffer
    scales: Buffer
    frozen: str = "frozen"

    def __str__(self) -> str:
        return f"{self.halves.name}, {self.scales.name} = {self.target} in halves, if frozen"


@dataclass(frozen=True)
class Launch:
    """A kernel over buffers: what it reads, what it writes, and its sizes."""

    kernel: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    sizes: tuple[Dim | str, ...]

    def __str__(self) -> str:
        sizes = f"; {', '.join(map(str, self.sizes))}" if self.sizes else ""
        return f"{', '.join(self.writes)} = {self.kernel}({', '.join(self.reads)}{sizes})"


@dataclass(frozen=True)
class Library:
    """A call that stays with torch; a contraction runs at the precision of the file."""

    output: str
    call: Call
    contracts: bool

    def __str__(self) -> str:
        return f"{self.output} = {self.call}"


@dataclass(frozen=True)
class Choice:
    """The steps of the first way if its guards hold, else those of the second."""

    guards: tuple[Guard, ...]
    steps: tuple[Step, ...]
    otherwise: tuple[Step, ...]

    def __str__(self) -> str:
        test = " and ".join(map(str, self.guards))
        return "\n".join([f"if {test}:", shown(self.steps), "else:", shown(self.otherwise)])


@dataclass(frozen=True)
class Panels:
    """A library product and the kernel after it, in turns on so many rows of the batch."""

    batch: Dim
    rows: int
    left: str
    right: str
    product: Buffer
    launch: Launch

    def __str__(self) -> str:
        turns = f"{self.product.name} = {self.left} @ {self.right}.T, then {self.launch}"
        return f"{self.rows} of {self.batch} rows at a time: {turns}"


Step: TypeAlias = "Alloc | Kept | Launch | Library | Choice | Panels"


def shown(steps: tuple[Step, ...], indent: str = "  ") -> str:
    return "\n".join(f"{indent}{line}" for s in steps for line in str(s).splitlines())


@dataclass(frozen=True)
class Frozen:
    """A weight that freeze() can keep in halves, and the kernel that knows how to split it."""

    target: str
    weight: str
    kernel: str
    shape: tuple[int, int]
    planes: int


class StepMaker:
    """Turns the regions of a plan into steps.

    `kernels` are by the name of the region that launches them, `shared` gives for such a name that
    of the kernel which stands for it and its equals; `keeps` says that weights may be frozen.
    """

    def __init__(
        self,
        plan: Plan,
        kernels: Mapping[str, Kernel],
        few: Mapping[str, FewKernel],
        shared: Mapping[str, str],
        panels: tuple[Panel, ...],
        target: Target,
        keeps: bool,
    ) -> None:
        self.plan, self.graph = plan, plan.graph
        self.kernels, self.few, self.shared = kernels, few, shared
        self.panels = {p.product: p for p in panels}
        self.target, self.keeps = target, keeps

    @property
    def sizes(self) -> tuple[str, ...]:
        return tuple(self.graph.symbols)

    def steps(self) -> tuple[Step, ...]:
        found: list[Step] = []
        by_name = {r.name: r for r in self.plan.regions}
        paired = {p.kernel for p in self.panels.values()}
        for region in self.plan.regions:
            if region.gemm is not None:
                found.append(self.product(region, region.gemm))
            elif region.name in self.panels:
                panel = self.panels[region.name]
                found += self.in_panels(region, by_name[panel.kernel], panel.rows)
            elif region.name not in paired:
                found += self.plain(region)
        return tuple(found)

    def plain(self, region: Region) -> list[Step]:
        """A kernel or a library call, as a region says it."""
        if region.program is not None:
            return [*map(Alloc, region.outputs), self.launch(region.name, self.sizes)]
        assert region.call is not None
        contracts = region.kind == "contract" and self.target.lanes is not None
        step = Library(region.outputs[0].name, region.call, contracts)
        return [self.few_rows(region, step)] if region.name in self.few else [step]

    def launch(
        self, name: str, sizes: tuple[Dim | str, ...], operands: tuple[str, ...] = ()
    ) -> Launch:
        kernel = self.kernels[name]
        reads = (*operands, *kernel.reads)
        return Launch(self.shared[name], reads, tuple(kernel.writes), sizes)

    def few_rows(self, region: Region, otherwise: Step) -> Choice:
        """The kernel for a few rows, else the library."""
        rows = product(region.outputs[0].shape[:-1])
        reads = tuple(name for name in (*region.operands, region.bias) if name)
        writes = (region.outputs[0].name,)
        launch = Launch(self.shared[self.few[region.name].name], reads, writes, (rows,))
        guards = [GENERATED, Guard("<=", rows, region.few)]
        if isinstance(rows, int):
            guards.pop()  # the planner has compared them
        steps: list[Step] = [*map(Alloc, region.outputs), launch]
        return Choice(tuple(guards), tuple(steps), (otherwise,))

    # ---- generated products ------------------------------------------------------------------

    def product(self, region: Region, gemm: Gemm) -> Choice:
        """Both ways to a product: the generated kernel, or the library's and those after it."""
        guards = [GENERATED, Guard(">=", gemm.all_rows, gemm.fewest), HOPPER]
        if isinstance(gemm.all_rows, int):
            guards.pop(1)  # the planner has compared them
        library = [step for r in gemm.library for step in self.plain(r)]
        return Choice(tuple(guards), tuple(self.generated(region)), tuple(library))

    def generated(self, region: Region) -> list[Step]:
        kernel = self.kernels[region.name]
        assert isinstance(kernel, GemmKernel)
        operands = [kernel.gemm.left.buffer, kernel.gemm.right.buffer]
        found: list[Step] = []
        sizes: tuple[Dim | str, ...] = self.sizes
        if kernel.splits:
            found += self.halves(kernel, region)
            operands += SPLIT_OPERANDS
            sizes = (*sizes, 0 if self.weight_of(region) is None else "frozen")
        found += map(Alloc, (*kernel.partials, *region.outputs))
        found.append(self.launch(region.name, sizes, tuple(operands)))
        finish = f"{region.name}_finish"
        if finish in self.kernels:
            found.append(self.launch(finish, self.sizes))
        return found

    def halves(self, kernel: GemmKernel, region: Region) -> list[Step]:
        """Memory for both operands in halves; a frozen weight brings its own."""
        gemm, planes = kernel.gemm, kernel.gemm.loop.planes
        left = halves("left", gemm.rows, gemm.depth, planes)
        right = halves("right", gemm.columns, gemm.depth, planes)
        weight = self.weight_of(region)
        found: list[Step] = [*map(Alloc, left)]
        if weight is None:
            found += map(Alloc, right)
        else:
            found.append(Kept(self.graph.targets[weight], weight, *right))
        # A counter, and for each column of tiles how far its split is; clusters are whole ones.
        constants = dict(kernel.config.constants)
        cluster = constants["kCluster"]
        tiles = -(-gemm.columns // (constants["kBlockN"] * cluster)) * cluster
        return [*found, Alloc(Buffer("progress", (1 + tiles,), torch.int32))]

    def weight_of(self, region: Region) -> str | None:
        """The parameter that is the weight of a split product: freeze() can keep its halves."""
        if not self.keeps or region.gemm is None or not region.gemm.loop.planes:
            return None
        name = region.gemm.right.buffer
        return name if self.graph[name].op in ("parameter", "buffer") else None

    def frozen(self) -> tuple[Frozen, ...]:
        """Every weight that can be frozen, once."""
        found: dict[str, Frozen] = {}
        for region in self.plan.regions:
            weight = self.weight_of(region)
            if weight is not None and region.gemm is not None:
                gemm, kernel = region.gemm, self.shared[region.name]
                target, shape = self.graph.targets[weight], (gemm.columns, gemm.depth)
                row = Frozen(target, weight, kernel, shape, gemm.loop.planes)
                found.setdefault(target, row)
        return tuple(found.values())

    # ---- panels ------------------------------------------------------------------------------

    def in_panels(self, gemm: Region, kernel: Region, rows: int) -> list[Step]:
        """A library product and its tail, a panel of rows at a time."""
        buffer = gemm.outputs[0]
        left, right = gemm.operands
        launch = self.launch(kernel.name, ("rows",))
        size = self.graph[buffer.name].type.shape[0]
        return [*map(Alloc, kernel.outputs), Panels(size, rows, left, right, buffer, launch)]


def halves(side: str, rows: Dim, depth: int, planes: int) -> tuple[Buffer, Buffer]:
    """A matrix as so many of float16, in panels, and two numbers about each of its rows."""
    panels = (whole(rows), whole(depth), planes, PANEL, PANEL)
    return (
        Buffer(f"{side}_halves", panels, torch.float16),
        Buffer(f"{side}_scales", (rows, 2), torch.float32),
    )


def whole(size: Dim) -> Dim:
    """Panels that hold so many rows."""
    return as_dim(FloorDiv(sympy.sympify(size) + PANEL - 1, PANEL))
