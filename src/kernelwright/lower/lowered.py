"""A plan becomes kernels, each once, and the steps of a call around them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from kernelwright.errors import InputError
from kernelwright.graph import Graph
from kernelwright.lower import in_place
from kernelwright.lower.attention import attention_kernel
from kernelwright.lower.convolution import convolution
from kernelwright.lower.few import BesideKernel, HostKernel, few_kernels
from kernelwright.lower.gemm import Tile
from kernelwright.lower.in_place import InPlace
from kernelwright.lower.kernel import GemmKernel, Kernel, product, rowwise
from kernelwright.lower.panels import Panel, panels
from kernelwright.lower.routines import Routine, routines
from kernelwright.lower.share import key, programs, shared
from kernelwright.lower.slices import Sliced, slices
from kernelwright.lower.steps import Frozen, Step
from kernelwright.lower.tail import tail
from kernelwright.lower.tasks import TaskMaker
from kernelwright.plan.model import Gemm, Plan, Program, Region
from kernelwright.targets.target import Target


@dataclass(frozen=True)
class Lowered:
    """What emit prints: kernels, the steps that launch them, and weights that can be frozen.

    `routines` are what the steps of a call invoke.
    `shared` gives for the name of any kernel that of the first one that is equal to it, `users` for
    such a name all regions that launch it, `programs` for any kernel the one that has its program.
    `in_place` are the buffers that kernels write.
    """

    kernels: tuple[Kernel, ...]
    few: tuple[BesideKernel, ...]
    routines: tuple[Routine, ...]
    steps: tuple[Step, ...]
    frozen: tuple[Frozen, ...]
    panels: tuple[Panel, ...]
    slices: tuple[Sliced, ...]
    shared: Mapping[str, str]
    programs: Mapping[str, str]
    users: Mapping[str, tuple[Region, ...]]
    in_place: InPlace


def lower(
    plan: Plan, target: Target, tiles: Mapping[str, Tile] | None = None, keeps: bool = True
) -> Lowered:
    """Kernels for every region that is not a library call, and for the library's way with it.

    `tiles` are tiles for generated products by name; the others have the one that looks cheapest.
    `keeps` says that ModelNew may have the methods that freeze weights.
    """
    on_cpu = target.lanes is None
    paired, sliced = (panels(plan), slices(plan, target)) if on_cpu else ((), ())
    every = _kernels(plan, target, dict(tiles or {}))
    in_turns = {name for p in paired for name in (p.product, p.kernel)}
    in_turns |= {name for s in sliced for name in (s.product, *s.kernels)}
    found = in_place.find(plan, every, frozenset(in_turns))
    every = [in_place.stored(plan.graph, kernel, found) for kernel in every]
    few = few_kernels(plan)
    names = shared(plan.graph, [*every, *few])
    host = {k.region.name: k for k in few if isinstance(k, HostKernel)}
    kernels = {k.name: k for k in every}
    maker = TaskMaker(plan, kernels, names, paired, sliced, target, keeps, host)
    users: dict[str, tuple[Region, ...]] = {}
    regions = {k.name: k.region for k in every} | {k.name: k.region for k in few}
    for own, region in regions.items():
        users[names[own]] = (*users.get(names[own], ()), region)
    tasks = [in_place.without(task, found) for task in maker.tasks()]
    made, steps = routines(plan.graph, tasks)
    return Lowered(
        tuple(k for k in every if names[k.name] == k.name),
        tuple(k for k in few if names[k.name] == k.name),
        made,
        steps,
        maker.frozen(),
        paired,
        sliced,
        names,
        programs(plan.graph, every, names),
        users,
        found,
    )


def _kernels(plan: Plan, target: Target, tiles: dict[str, Tile]) -> list[Kernel]:
    found: list[Kernel] = []
    alike: dict[Hashable, Tile | None] = {}
    for region in plan.regions:
        made: list[Kernel] = []
        if region.gemm is not None:
            chosen = tiles.pop(region.name, None)
            made = _product(plan.graph, region, region.gemm, chosen, target, alike)
            found += made
        if region.conv is not None:
            found += convolution(plan.graph, region, region.conv, target)
        if region.attention is not None:
            found.append(attention_kernel(plan.graph, region, region.attention))
        for step in region.library:
            if step.program is not None:
                found.append(_after(plan.graph, step, step.program, made, target))
    if tiles:
        names = ", ".join(r.name for r in plan.regions if r.gemm is not None) or "there is none"
        raise InputError(f"{next(iter(tiles))!r} is no generated product; choose from: {names}.")
    return found


def _after(
    graph: Graph, region: Region, program: Program, product: list[Kernel], target: Target
) -> Kernel:
    """A kernel over rows; on the library's way, if it can, with the program of the `product`."""
    first = product[0] if product else None
    shared = tail(graph, region, first, target) if isinstance(first, GemmKernel) else None
    return shared or rowwise(graph, region, program, target)


def _product(
    graph: Graph,
    region: Region,
    gemm: Gemm,
    chosen: Tile | None,
    target: Target,
    alike: dict[Hashable, Tile | None],
) -> list[Kernel]:
    """A product with the tile that was chosen for it, or for one that it could be shared with."""
    plain = product(graph, region, gemm, None, target)
    tile = alike.setdefault(key(graph, plain[0]), chosen)
    if chosen is None and tile is None:
        return plain
    return product(graph, region, gemm, chosen or tile, target)
