"""The kernels of several graphs in one file: equal ones are one, and each has a name of its own.

In: what was lowered for each graph, in order. Out: the same, where a kernel that an earlier graph
has too is left to that one, and a name that it has taken for another kernel is changed.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from kernelwright.graph import Graph
from kernelwright.lower.few import BesideKernel
from kernelwright.lower.kernel import Kernel
from kernelwright.lower.lowered import Lowered
from kernelwright.lower.share import key
from kernelwright.lower.steps import Choice, Launch, Panels, Slices, Step
from kernelwright.lower.tail import TailKernel

K = TypeVar("K", bound=Kernel | BesideKernel)


def together(parts: Sequence[tuple[Graph, Lowered]]) -> list[Lowered]:
    """Each part with names that are the same kernel in all of them."""
    first: dict[Hashable, str] = {}
    taken: set[str] = set()
    found = []
    for graph, lowered in parts:
        names: dict[str, str] = {}
        kernels = _named(lowered.kernels, graph, first, taken, names)
        few = _named(lowered.few, graph, first, taken, names)
        found.append(_renamed(replace(lowered, kernels=kernels, few=few), names))
    return found


def _named(
    kernels: Sequence[K],
    graph: Graph,
    first: dict[Hashable, str],
    taken: set[str],
    names: dict[str, str],
) -> tuple[K, ...]:
    """The kernels that no earlier part has, under names that are free; `names` is filled."""
    own = []
    for kernel in kernels:
        known = kernel.key if isinstance(kernel, BesideKernel) else key(graph, kernel)
        if known not in first:
            free = _free(kernel, taken)
            first[known] = free.name
            taken.add(free.name)
            own.append((kernel.name, free))
        names[kernel.name] = first[known]
    return tuple(_of_named(kernel, names) for _, kernel in own)


def _free(kernel: K, taken: set[str]) -> K:
    name, number, found = kernel.region.name, 1, kernel
    while found.name in taken:
        number += 1
        found = replace(kernel, region=replace(kernel.region, name=f"{name}_{number}"))
    return found


def _of_named(kernel: K, names: Mapping[str, str]) -> K:
    if not isinstance(kernel, TailKernel):
        return kernel
    of = kernel.of
    region = replace(of.region, name=names.get(of.name, of.name))
    return replace(kernel, of=replace(of, region=region))


def _renamed(lowered: Lowered, names: Mapping[str, str]) -> Lowered:
    if all(old == new for old, new in names.items()):
        return lowered

    def new(name: str) -> str:
        return names.get(name, name)

    return replace(
        lowered,
        routines=tuple(replace(r, steps=_steps(r.steps, names)) for r in lowered.routines),
        steps=_steps(lowered.steps, names),
        shared={own: new(name) for own, name in lowered.shared.items()},
        programs={new(own): new(name) for own, name in lowered.programs.items()},
        users={new(name): regions for name, regions in lowered.users.items()},
    )


def _steps(steps: tuple[Step, ...], names: Mapping[str, str]) -> tuple[Step, ...]:
    return tuple(_step(step, names) for step in steps)


def _step(step: Step, names: Mapping[str, str]) -> Step:
    if isinstance(step, Launch):
        return replace(step, kernel=names.get(step.kernel, step.kernel))
    if isinstance(step, Choice):
        ways = _steps(step.steps, names), _steps(step.otherwise, names)
        return replace(step, steps=ways[0], otherwise=ways[1])
    if isinstance(step, Panels):
        launch = _step(step.launch, names)
        assert isinstance(launch, Launch)
        return replace(step, launch=launch)
    if isinstance(step, Slices):
        launches = [_step(launch, names) for launch in step.launches]
        return replace(step, launches=tuple(s for s in launches if isinstance(s, Launch)))
    return step
