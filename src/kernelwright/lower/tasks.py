"""The regions of a plan as tasks: the steps that carry out each of them.

In: a Plan, its kernels, panels and slices. Out: Tasks. Everything that the host decides is decided
here: which ways there are to a product, on which machines, from how many rows on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

import torch

from kernelwright.graph import Dim, product
from kernelwright.lower.attention import AttentionKernel
from kernelwright.lower.convolution import ConvKernel
from kernelwright.lower.few import HostKernel
from kernelwright.lower.kernel import GemmKernel, Kernel
from kernelwright.lower.panels import Panel
from kernelwright.lower.slices import Sliced
from kernelwright.lower.steps import (
    CONV_OPERANDS,
    DECISIONS,
    GENERATED,
    SPLIT_OPERANDS,
    THIN_OPERANDS,
    Alloc,
    Choice,
    Decide,
    Frozen,
    Guard,
    Kept,
    Launch,
    Library,
    Panels,
    Slices,
    Step,
    Task,
    halves,
    machine_of,
)
from kernelwright.plan.model import Attention, Buffer, Direct, Gemm, Operand, Plan, Region
from kernelwright.targets.target import CoreAttending, Target

# Up to how many rows, on which machines, and what is done.
Way: TypeAlias = "tuple[int, tuple[Guard, ...], tuple[Step, ...]]"


class TaskMaker:
    """Turns the regions of a plan into tasks.

    `kernels` are by the name of the region that launches them, `shared` gives for such a name that
    of the kernel which stands for it and its equals; `keeps` says that weights may be frozen, and
    `host` are the CPU's own products by region.
    """

    def __init__(
        self,
        plan: Plan,
        kernels: Mapping[str, Kernel],
        shared: Mapping[str, str],
        panels: tuple[Panel, ...],
        slices: tuple[Sliced, ...],
        target: Target,
        keeps: bool,
        host: Mapping[str, HostKernel],
    ) -> None:
        self.plan, self.graph = plan, plan.graph
        self.kernels, self.shared = kernels, shared
        self.panels = {p.product: p for p in panels}
        self.slices = {s.kernels[-1]: s for s in slices}
        self.target, self.keeps, self.host = target, keeps, host

    @property
    def sizes(self) -> tuple[str, ...]:
        return tuple(self.graph.symbols)

    def tasks(self) -> tuple[Task, ...]:
        """What a call does, in order; a product in panels is one task with the kernel after it.

        So is a convolution in slices with the kernels after it, at the place of the last of these.
        """
        found: list[Task] = []
        by_name = {r.name: r for r in self.plan.regions}
        paired = {p.kernel for p in self.panels.values()}
        paired |= {n for s in self.slices.values() for n in (s.product, *s.kernels)}
        passes: list[Region] = []
        for region in self.plan.regions:
            if region.name in self.slices:
                sliced = self.slices[region.name]
                group = [by_name[name] for name in sliced.kernels]
                found.append(self.in_slices(by_name[sliced.product], group, sliced))
            elif region.conv is not None:
                passes.append(region)
                if region.conv.library:
                    found.append(self.convolution(passes))
                    passes = []
            elif region.name in self.panels:
                panel = self.panels[region.name]
                kernel = by_name[panel.kernel]
                steps = self.in_panels(region, kernel, panel.rows)
                if region.name in self.host:
                    steps = [self.by_host(region, self.plain(kernel), steps)]
                found.append(_task(kernel, steps))
            elif region.name not in paired:
                found.append(_task(region, self.carried_out(region)))
        return tuple(found)

    def carried_out(self, region: Region) -> list[Step]:
        if region.gemm is not None:
            return [self.product(region, region.gemm)]
        if region.attention is not None:
            return self.attention(region, region.attention)
        return self.plain(region)

    def plain(self, region: Region) -> list[Step]:
        """A kernel or a library call, as a region says it."""
        if region.program is not None:
            room = self.kernels[region.name].room
            launch = self.launch(region.name, self.sizes, tuple(b.name for b in room))
            return [*map(Alloc, (*region.outputs, *room)), launch]
        assert region.call is not None
        contracts = region.kind == "contract" and self.target.lanes is not None
        step = Library(region.outputs[0].name, region.call, contracts)
        if region.name in self.host:
            return [self.by_host(region, [], [step])]
        if region.direct is not None:
            return self.directly(region, region.direct, (), (step,))
        return [self.few_rows(region, step) if region.few or region.thin else step]

    def launch(
        self, name: str, sizes: tuple[Dim | str, ...], operands: tuple[str, ...] = ()
    ) -> Launch:
        kernel = self.kernels[name]
        reads = (*operands, *kernel.reads)
        return Launch(self.shared[name], reads, tuple(kernel.writes), sizes)

    # ---- products on the CPU -----------------------------------------------------------------

    def by_host(self, region: Region, then: list[Step], otherwise: list[Step]) -> Step:
        """A product by a kernel of ours where that is faster, and what follows it."""
        kernel = self.host[region.name]
        made = kernel.product
        reads = (made.left.buffer, made.right.buffer, *([region.bias] if region.bias else []))
        writes = tuple(b.name for b in region.outputs)
        launch = Launch(self.shared[kernel.name], reads, writes, kernel.numbers)
        guard = Guard("rows", made.rows, ways=made.ways)
        steps = (*map(Alloc, region.outputs), launch, *then)
        return Choice((GENERATED, guard), steps, tuple(otherwise))

    # ---- small convolutions ------------------------------------------------------------------

    def directly(
        self, region: Region, direct: Direct, after: tuple[Step, ...], library: tuple[Step, ...]
    ) -> list[Step]:
        """A convolution by its own kernel and what comes `after` it, or the library's steps."""
        reads = tuple(name for name in (*region.operands[:2], region.bias) if name)
        samples, writes = direct.form.batch, (region.outputs[0].name,)
        launch = Launch(self.shared[f"{region.name}_direct"], reads, writes, (samples,))
        made = (*map(Alloc, region.outputs), launch, *after)
        if isinstance(samples, int):  # the planner has compared it
            return list(made)
        return [Choice((Guard("<=", samples, direct.most),), made, library)]

    # ---- products of few rows ----------------------------------------------------------------

    def few_rows(self, region: Region, library: Step) -> Step:
        """The kernel for the fewest rows, or the one for a few more, or the library."""
        rows = product(region.outputs[0].shape[:-1])
        ways = self.few_ways(region, rows)
        if isinstance(rows, int):
            ways = [way for way in ways if rows <= way[0]][:1]
        step = library
        for most, guards, steps in reversed(ways):
            # The planner has compared a number that is known.
            sized = () if isinstance(rows, int) else (Guard("<=", rows, most),)
            made = (*map(Alloc, region.outputs), *steps)
            step = Choice((GENERATED, *sized, *guards), made, (step,))
        return step

    def few_ways(self, region: Region, rows: Dim) -> list[Way]:
        reads = tuple(name for name in (*region.operands, region.bias) if name)
        writes = (region.outputs[0].name,)
        ways: list[Way] = []
        if region.few:
            kernel = self.shared[f"{region.name}_few_rows"]
            ways.append((region.few, (), (Launch(kernel, reads, writes, (rows,)),)))
        if region.thin:
            columns, depth = (int(str(size)) for size in self.graph[reads[1]].type.shape)
            kernel = self.shared[f"{region.name}_thin"]
            left = halves("left", 1, rows, depth, region.thin.loop.planes)
            for most, parts in region.thin.parts:
                sums = Buffer("sums", (parts, rows, columns), torch.float32)
                scales = Buffer("right_scales", (parts, columns, 2), torch.float32)
                launch = Launch(kernel, (*reads, *THIN_OPERANDS), writes, (rows, parts))
                made: tuple[Step, ...] = (*map(Alloc, (*left, sums, scales)), launch)
                ways.append((most, (machine_of(region.thin.loop),), made))
        return ways

    # ---- generated products ------------------------------------------------------------------

    def product(self, region: Region, gemm: Gemm) -> Choice:
        """Both ways to a product: the generated kernel, or the library's and those after it."""
        enough = Guard(">=", gemm.all_rows, gemm.fewest)
        weight = self.weight_of(region)
        if weight is not None and gemm.fewest_frozen != gemm.fewest:
            frozen = self.graph.targets[weight]
            enough = replace(enough, frozen=frozen, frozen_limit=gemm.fewest_frozen)
        guards = [GENERATED, enough, machine_of(gemm.loop)]
        if isinstance(gemm.all_rows, int):
            guards.pop(1)  # the planner has compared them
        library = [step for r in gemm.library for step in self.plain(r)]
        return Choice(tuple(guards), tuple(self.generated(region)), tuple(library))

    def generated(self, region: Region) -> list[Step]:
        kernel = self.kernels[region.name]
        assert isinstance(kernel, GemmKernel)
        gemm = kernel.gemm
        operands = [gemm.left.buffer, gemm.right.buffer]
        frozen = 0 if self.weight_of(region) is None else "frozen"
        found: list[Step] = []
        if kernel.splits:
            found += self.halves(kernel, region)
            operands += SPLIT_OPERANDS
        found += map(Alloc, (*kernel.partials, *region.outputs))
        found.append(Decide(gemm.rows, product(gemm.batch), tuple(kernel.rule), frozen))
        sizes = (*self.sizes, *DECISIONS[:3], frozen)
        found.append(self.launch(region.name, sizes, tuple(operands)))
        return [*found, *self.finished(region)]

    def finished(self, region: Region) -> list[Step]:
        """The kernel that puts rows together, if there is one."""
        name = f"{region.name}_finish"
        if name not in self.kernels:
            return []
        room = self.kernels[name].room
        launch = self.launch(name, self.sizes, tuple(b.name for b in room))
        return [*map(Alloc, room), launch]

    # ---- attentions --------------------------------------------------------------------------

    def attention(self, region: Region, attention: Attention) -> list[Step]:
        """Both ways to an attention: one kernel, or its steps apart on another GPU."""
        kernel = self.kernels[region.name]
        assert isinstance(kernel, AttentionKernel)
        launch = self.launch(region.name, self.sizes, kernel.operands)
        made: list[Step] = [*map(Alloc, region.outputs), launch]
        if isinstance(attention.loop, CoreAttending):
            return made
        apart = [step for r in attention.library for step in self.plain(r)]
        machine = Guard("capability", capability=attention.loop.capability)
        return [Choice((GENERATED, machine), tuple(made), tuple(apart))]

    # ---- generated convolutions --------------------------------------------------------------

    def convolution(self, passes: list[Region]) -> Task:
        """Both ways to all that follows a convolution: one generated kernel for each pass."""
        last = passes[-1]
        assert last.conv is not None
        pairs = zip((None, *passes), passes, strict=False)
        made = [step for before, region in pairs for step in self.convolved(region, before)]
        library = [step for r in last.conv.library for step in self.plain(r)]
        guards = [GENERATED, Guard("capability", capability=last.conv.loop.capability)]
        samples, fewest = last.conv.form.batch, last.conv.fewest
        if fewest > 1 and not isinstance(samples, int):
            guards.insert(1, Guard(">=", samples, fewest))
        choice = Choice(tuple(guards), tuple(made), tuple(library))
        results = tuple(b.name for region in passes for b in region.outputs)
        return Task(last.name, (choice,), results)

    def convolved(self, region: Region, before: Region | None) -> list[Step]:
        """A pass; with the weights of the one `before` it, where they are packed alike."""
        kernel = self.conv_kernel(region)
        goes_on = before is not None and kernel.goes_on(self.conv_kernel(before))
        rooms = [replace(b, name=name) for b, name in zip(kernel.room, CONV_OPERANDS, strict=True)]
        fresh = [] if goes_on else rooms
        found: list[Step] = [*map(Alloc, (*fresh, *kernel.partials, *region.outputs))]
        operands = (kernel.conv.form.input, kernel.conv.form.weight, *CONV_OPERANDS)
        found.append(self.launch(region.name, (*self.sizes, int(goes_on)), operands))
        return [*found, *self.finished(region)]

    def conv_kernel(self, region: Region) -> ConvKernel:
        kernel = self.kernels[region.name]
        assert isinstance(kernel, ConvKernel)
        return kernel

    def halves(self, kernel: GemmKernel, region: Region) -> list[Step]:
        """Memory for both operands in halves; a frozen weight brings its own."""
        gemm, planes = kernel.gemm, kernel.gemm.loop.planes
        left = halves("left", _distinct(gemm.left, gemm.batch), gemm.rows, gemm.depth, planes)
        right = halves("right", _distinct(gemm.right, gemm.batch), gemm.columns, gemm.depth, planes)
        weight = self.weight_of(region)
        found: list[Step] = [*map(Alloc, left)]
        if weight is None:
            found += map(Alloc, right)
        else:
            found.append(Kept(self.graph.targets[weight], weight, *right))
        # A counter, and for each column of tiles how far its split is; clusters are whole ones.
        columns, cluster = kernel.tile.columns, kernel.tile.cluster
        tiles = -(-gemm.columns // (columns * cluster)) * cluster
        return [*found, Alloc(Buffer("progress", (1 + tiles,), torch.int32))]

    def weight_of(self, region: Region) -> str | None:
        """The parameter that is the weight of a split product: freeze() can keep its halves."""
        kernel = self.kernels[region.name] if region.gemm is not None else None
        if not self.keeps or not isinstance(kernel, GemmKernel) or not kernel.freezes:
            return None
        name = kernel.gemm.right.buffer
        return name if self.graph[name].op in ("parameter", "buffer") else None

    def frozen(self) -> tuple[Frozen, ...]:
        """Every weight that can be frozen, once."""
        found: dict[str, Frozen] = {}
        for region in self.plan.regions:
            weight = self.weight_of(region)
            if weight is not None and region.gemm is not None:
                gemm, kernel = region.gemm, self.shared[region.name]
                target, shape = self.graph.targets[weight], self.graph[weight].type.shape
                sizes = (gemm.columns, int(str(gemm.depth)), gemm.loop.planes)
                whole_shape = tuple(int(str(n)) for n in shape)
                row = Frozen(target, weight, kernel, machine_of(gemm.loop), whole_shape, *sizes)
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

    def in_slices(self, region: Region, group: list[Region], sliced: Sliced) -> Task:
        """A library convolution and its tail, some samples at a time."""
        assert region.call is not None
        buffers = [b for kernel in group for b in kernel.outputs]
        whole = tuple(b for b in buffers if b.name not in sliced.inside)
        inside = tuple(b for b in buffers if b.name in sliced.inside)
        step = Slices(
            region.outputs[0].shape[0],
            sliced.each,
            sliced.slice,
            sliced.fewest,
            region.operands[0],
            region.call,
            region.outputs[0].name,
            whole,
            inside,
            tuple(self.launch(kernel.name, ("samples",)) for kernel in group),
        )
        results = tuple(b.name for b in whole)
        steps: list[Step] = [step]
        if region.direct is not None:
            sizes = self.sizes
            launches = (self.launch(kernel.name, sizes) for kernel in group)
            after: tuple[Step, ...] = (*map(Alloc, inside), *launches)
            steps = self.directly(region, region.direct, after, (step,))
        return Task(group[-1].name, (*map(Alloc, whole), *steps), results)


def _task(region: Region, steps: list[Step]) -> Task:
    """A library call is called after its operator: its region has the name of a value."""
    name = region.name
    if region.call is not None and region.gemm is None:
        words = region.call.target.split(".")
        name = words[3] if words[:2] == ["torch", "ops"] else words[-1]
    return Task(name, tuple(steps), tuple(b.name for b in region.outputs))


def _distinct(operand: Operand, batch: tuple[Dim, Dim]) -> Dim:
    """How many matrices an operand has; along an axis of stride 0 they are the same one."""
    strides = (operand.outer, operand.inner)
    return product([n for n, stride in zip(batch, strides, strict=True) if stride != 0])
