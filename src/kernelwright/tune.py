"""Tiles by measurement: a problem in, for each generated product the tile that ran fastest here.

The cost model of lower/gemm.py ranks the tiles; the first few are built into whole models, one
product at a time with the others at their default, and timed in turns. The default stays unless
another tile is clearly faster. What was measured is kept (tile_cache.py) and not measured again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from kernelwright import tile_cache
from kernelwright.bench.tiles import Time, measure
from kernelwright.compiled import Compiled
from kernelwright.emit.headers import flatten
from kernelwright.errors import InputError
from kernelwright.graph import hint
from kernelwright.lower.gemm import Tile, fitting, spelled, tile_for
from kernelwright.lower.kernel import GemmKernel
from kernelwright.pipeline import Progress, compile_problem
from kernelwright.plan.policy import WHERE_IT_PAYS, Policy
from kernelwright.problem import Problem
from kernelwright.targets import ALL, target_of
from kernelwright.targets.target import Target
from kernelwright.tile_cache import Measured, Shape

MOST = 5
MARGIN = 0.01
Measure = Callable[[Problem, Sequence[str]], Sequence[Time]]

NO_LOOPS = (
    "There is nothing to tune on {device}: products are generated for {names}; run --tune on such "
    "a machine."
)
NO_PRODUCT = (
    "There is nothing to tune: no product of this model is generated; `kernelwright explain` says "
    "why."
)
FEW_ROWS = (
    "{name} is left to the library below {fewest} rows and has {rows}; to tune it, let the inputs "
    "have more."
)


def compile_tuned(
    problem: Problem, progress: Progress | None = None, policy: Policy = WHERE_IT_PAYS
) -> Compiled:
    """compile_problem, with the tiles that ran fastest on this machine."""
    tiles = tune(problem, progress, policy=policy)
    return compile_problem(problem, progress, tiles=tiles, policy=policy)


def tune(
    problem: Problem,
    progress: Progress | None = None,
    *,
    most: int = MOST,
    machine: str | None = None,
    measure: Measure = measure,
    policy: Policy = WHERE_IT_PAYS,
    target: Target | None = None,
) -> dict[str, Tile]:
    """Tiles by the name of the product, for compile_problem; none where there is nothing to tune.

    `machine` is the name of the GPU and `target` what it is, by default those of the one that the
    problem is on.
    """
    tell = progress or (lambda name, summary: None)
    target = target or target_of(problem.device)
    if not target.loops:
        names = ", ".join(t.name for t in ALL if t.loops)
        tell("tune", NO_LOOPS.format(device=problem.device.type, names=names))
        return {}
    machine = machine or torch.cuda.get_device_name(problem.device)
    compiled = compile_problem(problem, target=target, policy=policy)
    products = [k for k in compiled.kernels if isinstance(k, GemmKernel)]
    if not products:
        tell("tune", NO_PRODUCT)
    tuning = _Tuning(problem, tell, most, machine, measure, policy, target)
    chosen = {kernel.name: tuning.choose(kernel) for kernel in products}
    return {name: tile for name, tile in chosen.items() if tile is not None}


class _Tuning:
    def __init__(
        self,
        problem: Problem,
        tell: Progress,
        most: int,
        machine: str,
        measure: Measure,
        policy: Policy,
        target: Target,
    ) -> None:
        self.problem = problem
        self.tell = tell
        self.most = most
        self.machine = machine
        self.measure = measure
        self.policy = policy
        self.target = target

    def choose(self, kernel: GemmKernel) -> Tile | None:
        """The tile of one product, with its measurement in its reason; None: the default, as is."""
        gemm, program = kernel.gemm, kernel.region.program
        assert program is not None
        rows = hint(gemm.all_rows, self.problem.batch)
        if rows < gemm.fewest:
            told = FEW_ROWS.format(name=kernel.name, fewest=gemm.fewest, rows=rows)
            self.tell("tune", told)
            return None
        ranked = fitting(gemm, program, rows)
        key = self.key(kernel, rows)
        found = tile_cache.recall(key)
        tile = self.explained(found, ranked)
        if tile is not None:
            again = f"from {tile_cache.cache_file()}, without measuring; delete it to measure again"
            self.tell("tune", f"{kernel.name}: {tile}, {again}")
            return tile
        default = tile_for(gemm, program).shape
        others = [t for t in ranked if t.shape != default]
        tiles = [t for t in ranked if t.shape == default] + others
        found = self.measured(kernel.name, tiles[: self.most])
        tile = self.explained(found, ranked)
        if found is not None and tile is not None:
            self.tell("tune", f"{kernel.name}: {tile}, {self.said(found)}")
            self.keep(key, found)
        return tile

    def key(self, kernel: GemmKernel, rows: int) -> str:
        """All that a measurement depends on, the text of the epilogue and the kernel as a hash."""
        gemm, program = kernel.gemm, str(kernel.region.program)
        used = f"{program} kw::{kernel.template.symbol} kw::{gemm.loop.symbol}"
        text = program + flatten([kernel.template.header("cuda")], used, "cuda")
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        sizes = f"{rows} x {gemm.columns} x {gemm.depth}"
        return f"{self.machine}, {gemm.loop.name}, {sizes}, {digest}"

    def measured(self, name: str, tiles: list[Tile]) -> Measured | None:
        """Time the tiles, the default first; None where there is nothing to compare."""
        sources = [
            compile_problem(
                self.problem, target=self.target, tiles={name: t}, policy=self.policy
            ).source
            for t in tiles
        ]
        times: dict[Shape, float] = {}
        for tile, time in zip(tiles, self.measure(self.problem, sources), strict=True):
            if isinstance(time, str):
                self.tell("tune", f"{name}: {tile} has no time, {time}")
            else:
                times[tile.shape] = time
        default = tiles[0].shape
        if default not in times or len(times) == 1:
            self.tell("tune", f"{name}: {tiles[0]} stays, nothing could be compared with it")
            return None
        best = min((s for s in times if s != default), key=lambda s: times[s])
        gain = times[default] / times[best] - 1
        if gain > MARGIN:
            return Measured(best, default, gain)
        return Measured(default, best, times[best] / times[default] - 1)

    def explained(self, found: Measured | None, ranked: list[Tile]) -> Tile | None:
        """The tile that was chosen, if it is (still) one that fits, with what was measured."""
        if found is None:
            return None
        fits = [t for t in ranked if t.shape == found.chosen]
        return replace(fits[0], why=f"{fits[0].why}; {self.said(found)}") if fits else None

    def said(self, found: Measured) -> str:
        other = spelled(*found.other)
        if found.gain < 0:
            return f"measured on {self.machine}: {other} is only {-found.gain:.1%} faster"
        return f"measured on {self.machine}: {found.gain:.1%} faster than {other}"

    def keep(self, key: str, found: Measured) -> None:
        try:
            tile_cache.keep(key, found)
        except (OSError, InputError) as error:
            self.tell("tune", f"The measurement could not be kept: {error}")
