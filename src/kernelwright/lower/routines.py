"""Equal tasks are one routine: the steps of a region as a function over slots.

In: tasks, each the steps that carry out one region. Out: routines, and the steps of a call with an
Invoke in the place of each task that is one. Values are numbered in the order in which kernels and
the library read them, and so are weights that may be frozen; tasks that are then equal, sizes and
guards included, are printed once under the name of the first, and given the values of whoever
invokes them. A choice between ways is a routine even if it occurs once, so that a call reads as
what the network does; how each step is done is then read where it is defined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kernelwright.graph import Call, Graph, Ref, Scalar, fresh_name, refs
from kernelwright.lower.steps import (
    WORKSPACE,
    Alloc,
    Choice,
    Decide,
    Guard,
    Invoke,
    Kept,
    Launch,
    Library,
    Panels,
    Slices,
    Step,
    Task,
    shown,
)


@dataclass(frozen=True)
class Routine:
    """Steps over slots, in the names of the first task that they carry out."""

    name: str
    parameters: tuple[str, ...]
    targets: tuple[str, ...]
    steps: tuple[Step, ...]
    results: tuple[str, ...]

    @property
    def temporaries(self) -> tuple[str, ...]:
        """What the steps make and nobody else sees."""
        return tuple(n for n in dict.fromkeys(_made(self.steps)) if n not in self.results)

    def __str__(self) -> str:
        given = ", ".join((*self.targets, *self.parameters))
        returned = f"  return {', '.join(self.results)}"
        return "\n".join([f"{self.name}({given}):", shown(self.steps), returned])


def routines(graph: Graph, tasks: Sequence[Task]) -> tuple[tuple[Routine, ...], tuple[Step, ...]]:
    """The routines of these tasks, and the steps of a call."""
    numbered = [_Slots(graph, task) for task in tasks]
    counts = Counter(slots.key for slots in numbered)
    found: dict[Hashable, Routine] = {}
    taken: set[str] = set()
    steps: list[Step] = []
    for task, slots in zip(tasks, numbered, strict=True):
        if not _chooses(task) and (counts[slots.key] == 1 or _reads_well(graph, task)):
            steps += task.steps
            continue
        own = Routine(task.name, slots.parameters, tuple(slots.targets), task.steps, task.results)
        if slots.key not in found:
            found[slots.key] = replace(own, name=fresh_name(task.name, taken))
        name = found[slots.key].name
        steps.append(Invoke(name, own.parameters, own.targets, own.results))
    return tuple(found.values()), tuple(steps)


def _chooses(task: Task) -> bool:
    return any(isinstance(step, Choice) for step in task.steps)


def _reads_well(graph: Graph, task: Task) -> bool:
    """One call of the library, on values as they are: a name for it would say less."""
    step = task.steps[0]
    if len(task.steps) > 1 or not isinstance(step, Library):
        return False
    return not any(graph[name].op == "view" for name in refs((step.call.args, step.call.kwargs)))


class _Slots:
    """The steps of a task with numbers in the place of values and of weights that may be frozen."""

    def __init__(self, graph: Graph, task: Task) -> None:
        self.graph = graph
        self.values: dict[str, int] = {}
        self.targets: dict[str, int] = {}
        for name in _read(task.steps):
            self.value(name)
        self.key: Hashable = (self.steps(task.steps), tuple(map(self.value, task.results)))
        made = set(_made(task.steps))
        self.parameters = tuple(name for name in self.values if name not in made)

    def number(self, name: str) -> int:
        return self.values.setdefault(name, len(self.values))

    def target(self, name: str) -> int:
        return self.targets.setdefault(name, len(self.targets))

    def value(self, name: str) -> Hashable:
        """A slot, a view of one, or a name that means the same everywhere."""
        if name not in self.graph.by_name:
            return name if name in WORKSPACE else self.number(name)
        node = self.graph[name]
        if node.op == "constant":
            return name
        if node.op != "view":
            return self.number(name)
        inner = self.graph[node.inputs[0]]
        return node.payload, node.type.shape, inner.type.shape, self.value(inner.name)

    def steps(self, steps: tuple[Step, ...]) -> tuple[Hashable, ...]:
        return tuple(map(self.step, steps))

    def step(self, step: Step) -> Hashable:
        if isinstance(step, Alloc):
            return Alloc, self.value(step.buffer.name), step.buffer.shape, step.buffer.dtype
        if isinstance(step, Launch):
            operands = tuple(tuple(map(self.value, side)) for side in (step.reads, step.writes))
            return step.kernel, operands, step.sizes
        if isinstance(step, Library):
            return self.value(step.output), step.contracts, self.call(step.call)
        if isinstance(step, Choice):
            guards = tuple(map(self.guard, step.guards))
            return guards, self.steps(step.steps), self.steps(step.otherwise)
        if isinstance(step, Kept):
            weight = self.target(step.target), self.value(step.weight)
            return weight, step.halves, step.scales, step.frozen
        if isinstance(step, Panels):
            sides = tuple(map(self.value, (step.left, step.right, step.product.name)))
            product = replace(step.product, name="")
            return step.batch, step.rows, sides, product, self.step(step.launch)
        if isinstance(step, Slices):
            buffers = tuple(
                (self.value(b.name), b.shape, b.dtype) for b in (*step.outputs, *step.inside)
            )
            called = self.value(step.product), self.value(step.left), self.call(step.call)
            sizes = step.batch, step.each, step.slice, len(step.outputs)
            return sizes, called, buffers, self.steps(step.launches)
        assert isinstance(step, Decide)
        return step

    def guard(self, guard: Guard) -> Hashable:
        return replace(guard, frozen=""), self.target(guard.frozen) if guard.frozen else None

    def call(self, call: Call) -> Hashable:
        inside = (call.args, call.kwargs)
        return (
            call.target,
            call.order,
            call.fewest,
            call.of_pixels,
            self.argument(inside),
            tuple(map(self.value, refs(inside))),
        )

    def argument(self, value: Any) -> Hashable:
        """An argument without the names in it; what is not known here by its text."""
        if isinstance(value, Ref):
            return self.value(value.name)
        if isinstance(value, Scalar):
            return value.expr, tuple((symbol, self.value(ref.name)) for symbol, ref in value.items)
        if type(value) in (tuple, list):
            return type(value), tuple(map(self.argument, value))
        return type(value), repr(value)


def _read(steps: tuple[Step, ...]) -> Iterator[str]:
    """What kernels and the library read, in order."""
    for step in steps:
        if isinstance(step, Launch):
            yield from step.reads
        elif isinstance(step, Library):
            yield from refs((step.call.args, step.call.kwargs))
        elif isinstance(step, Panels):
            yield from (step.left, step.right, *step.launch.reads)
        elif isinstance(step, Slices):
            yield from refs((step.call.args, step.call.kwargs))
            yield from _read(step.launches)
        elif isinstance(step, Choice):
            yield from _read((*step.steps, *step.otherwise))


def _made(steps: tuple[Step, ...]) -> Iterator[str]:
    """What the steps themselves bring into being."""
    for step in steps:
        if isinstance(step, Alloc) and step.buffer.name not in WORKSPACE:
            yield step.buffer.name
        elif isinstance(step, Library):
            yield step.output
        elif isinstance(step, Panels):
            yield step.product.name
        elif isinstance(step, Slices):
            yield from (step.product, *(b.name for b in step.inside))
        elif isinstance(step, Choice):
            yield from _made((*step.steps, *step.otherwise))
