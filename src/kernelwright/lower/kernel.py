"""A planned region becomes a Kernel: everything the emitter needs to print it, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from kernelwright.expr import Expr, load
from kernelwright.graph import Graph
from kernelwright.lower.config import Config, configure
from kernelwright.lower.decide import launch_rule
from kernelwright.lower.gemm import Tile, check_fits, config_of, tile_for
from kernelwright.lower.schedule import Schedule, schedule
from kernelwright.lower.turn import tiled, turned
from kernelwright.plan.epilogue import decompose, needs_whole_tiles
from kernelwright.plan.model import Buffer, Gemm, Program, Region
from kernelwright.targets.target import Target


@dataclass(frozen=True)
class Template:
    """A header under kernels/ and the function template in it: `symbol<Program, Config>`.

    `spares_cache` says that what it reads once does not go through the L1 cache. In an epilogue the
    tiles need that; a row kernel is 2 to 5% slower for it (H200, 2 GB). `updates` says that every
    result is stored once, by a thread that reads what it computes it from by itself: so a result
    may be stored where one of its operands was. `joins` says that stages which need nothing of each
    other share one reading of the row, on a GPU; `centres`, that sums whose means are subtracted
    come as doubles. A compiler takes `seconds` for it, roughly (nvcc 13.0, GCC, on 3 GHz cores).
    """

    symbol: str
    spares_cache: bool = False
    updates: bool = False
    joins: bool = False
    centres: bool = False
    seconds: int = 1

    def header(self, device: str) -> str:
        return f"{self.symbol}.{'cuh' if device == 'cuda' else 'hpp'}"


# The name of the results of parts, as in thin products.
PARTS = "sums"
TEMPLATES = {
    t.symbol: t
    for t in (
        Template("pointwise", updates=True),
        Template("ragged", updates=True),
        Template("resident", updates=True, centres=True),
        Template("streaming", updates=True, joins=True, centres=True),
        Template("spread", updates=True, joins=True, centres=True),
        Template("strided", updates=True, joins=True, centres=True),
        Template("short_rows", updates=True, centres=True),
        Template("turned"),
        Template("tiled"),
        Template("spread_strided", updates=True, joins=True, centres=True),
        Template("windows"),
        Template("pictures"),
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

    @property
    def reads(self) -> list[str]:
        """The buffers that the program loads from, in the order of first use."""
        return list(dict.fromkeys(a.buffer for a in self.program.loads))

    @property
    def writes(self) -> list[str]:
        counts = [buffer for buffer, _ in self.program.counts]
        return [*(s.access.buffer for s in self.program.stores), *counts]

    @property
    def centres(self) -> tuple[bool, ...]:
        """For each stage, whether its total is a double."""
        wide = self.template.centres
        return tuple(wide and centre for centre in self.program.centres)

    @property
    def room(self) -> tuple[Buffer, ...]:
        """Memory that its launches work with: what the parts of a row leave for the next one."""
        parts = dict(self.config.constants).get("kParts")
        if parts is None:
            return ()
        program = self.program
        floats = 2 if any(self.centres) else 1
        shape = (program.count(program.rows), len(program.stages), parts * floats)
        return (Buffer(PARTS, shape, torch.float32),)

    @property
    def places(self) -> list[str]:
        """The buffers that its program can write, in the order of its Args; others do some."""
        return self.writes

    def __str__(self) -> str:
        return f"{self.name}: {self.config}"


@dataclass(frozen=True)
class GemmKernel(Kernel):
    """A product and its epilogue, for which the product is `given`.

    `partials` holds what the tiles leave for a kernel after it, which stores the program's rows.
    """

    gemm: Gemm
    given: Expr
    partials: tuple[Buffer, ...]
    tile: Tile

    @property
    def splits(self) -> bool:
        """Whether the operands are split, into memory that the launch is given."""
        return self.gemm.loop.planes > 0

    @property
    def freezes(self) -> bool:
        """Whether the right operand can be split once for all calls: one matrix that stays."""
        right = self.gemm.right
        places = (right.offset, right.row, right.depth)
        alone = (right.outer, right.inner) == (0, 0)
        return self.splits and alone and all(isinstance(n, int) for n in (*places, self.gemm.depth))

    @property
    def rule(self) -> tuple[Any, ...]:
        """What its launches are decided by."""
        return launch_rule(self.gemm, self.tile.shape[:3], self.tile.at_once)

    @property
    def interleaves(self) -> bool:
        """Whether the right operand is split into an order that gives threads four neighbours."""
        return dict(self.config.constants)["kVec"] == 4

    @property
    def reads(self) -> list[str]:
        """Without the product, which comes in registers."""
        return [name for name in super().reads if name != self.gemm.product]

    @property
    def row_partials(self) -> dict[int, str]:
        """For each stage over whole rows, the buffer for its result in each tile."""
        rows = [i for i, s in enumerate(self.program.stages) if not s.segment]
        return dict(zip(rows, (b.name for b in self.partials), strict=True))

    @property
    def by_tile(self) -> bool:
        """Whether the stages of a tile go on with its own results."""
        return needs_whole_tiles(self.program)

    @property
    def writes(self) -> list[str]:
        early = [s.access.buffer for s in self.program.stores if s.level != "row"]
        return [*early, *self.row_partials.values()]

    @property
    def places(self) -> list[str]:
        stored = [s.access.buffer for s in self.program.stores]
        return [*stored, *self.row_partials.values()]


def rowwise(graph: Graph, region: Region, program: Program, target: Target) -> Kernel:
    turning = turned(graph, program) if target.lanes is not None else tiled(program)
    program, config = turning or (program, configure(graph, program, target))
    return Kernel(region, program, schedule(program), config, TEMPLATES[config.shape])


def product(
    graph: Graph, region: Region, gemm: Gemm, chosen: Tile | None, target: Target
) -> list[Kernel]:
    """The product, and the kernel that finishes its rows if there is one."""
    program = region.program
    assert program is not None
    if chosen is not None:
        check_fits(gemm, program, chosen)
    tile = chosen or tile_for(gemm, program)
    seat = decompose(program, tile.columns, set(graph.by_name))
    (given,) = (load(a) for a in program.loads if a.buffer == gemm.product)
    config = config_of(graph, gemm, tile, program)
    plan = schedule(program, (given,))
    template = Template(config.shape, spares_cache=True, seconds=8)
    kernels: list[Kernel] = [
        GemmKernel(region, program, plan, config, template, gemm, given, seat.partials, tile)
    ]
    if seat.finish is not None:
        kernels.append(rowwise(graph, finishing(region, seat.finish), seat.finish, target))
    return kernels


def finishing(region: Region, program: Program) -> Region:
    """The second step of a generated product, as a region of its own."""
    stored = [s.access.buffer for s in program.stores]
    done = {*stored, *(s.name for s in program.stages)}
    return Region(
        name=f"{region.name}_finish",
        kind="rowwise",
        nodes=tuple(n for n in region.nodes if n in done),
        why=region.why,
        program=program,
        outputs=tuple(b for b in region.outputs if b.name in stored),
        reads=tuple(dict.fromkeys(a.buffer for a in program.loads)),
    )
