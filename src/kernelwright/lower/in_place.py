"""New values of buffers are stored in the buffers themselves, by the kernels that compute them.

In: a plan and its kernels, where the new value of a buffer is a result like any other. Out: the
kernels with such stores turned to the buffer, which buffers these are, and tasks without the memory
that nobody needs any more. So a BatchNorm in training has no copies behind its kernels; and since
its kernel writes a buffer anyhow, the counter of batches goes up in it too.

The old value must be in the buffer for as long as a step reads it, whichever way is taken. The
kernel that stores may read it itself, if every element is read by the thread that stores it, and
for nothing but that (Template.updates). A new value that does not fit is copied at the end.

Newer GPUs overlap kernels, but every one stores behind its await_turn (launch.cuh): all readers of
the old value that came before are done, and none that comes later has begun to read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from kernelwright.expr import Expr, leaves
from kernelwright.graph import Graph, View, refs
from kernelwright.lower.kernel import Kernel
from kernelwright.lower.steps import Alloc, Choice, Step, Task
from kernelwright.plan.model import Access, Plan, Program, Region, Store

# Templates that call store_row, which counts.
OVER_ROWS = ("resident", "streaming", "spread", "strided", "short_rows", "spread_strided")


@dataclass(frozen=True)
class InPlace:
    """`stored` gives for new values the buffers that they are stored in, all by name in the graph.

    `counted` gives for buffers that count the value whose kernels count them.
    """

    stored: dict[str, str]
    counted: dict[str, str]

    @property
    def buffers(self) -> tuple[str, ...]:
        """All that kernels write in place."""
        return (*self.stored.values(), *self.counted)


def find(plan: Plan, kernels: Sequence[Kernel], in_turns: frozenset[str]) -> InPlace:
    """What can be written in place; `in_turns` are regions that run on parts of the batch."""
    graph = plan.graph
    places = {target: name for name, target in graph.targets.items() if graph[name].op == "buffer"}
    stored = {}
    for target, new in graph.mutations:
        buffer, value = places[target], _reshaped(graph, new)
        makers = [kernel for kernel in kernels if value in kernel.writes]
        if _is_free(plan, buffer, value, in_turns) and all(
            _updates(kernel, buffer, value) for kernel in makers
        ):
            stored[value] = buffer
    hosts = [value for value in stored if all(_counts(k) for k in kernels if value in k.writes)]
    counted = {}
    for counter in graph.counters:
        name = places[counter.buffer]
        # Its own BatchNorm's, so that the kernels of equal layers stay equal.
        near = [v for v in hosts if _owner(graph.targets[stored[v]]) == _owner(counter.buffer)]
        if graph[name].type.dtype is torch.int64 and hosts:
            counted[name] = (near or hosts)[0]
    return InPlace(stored, counted)


def _owner(target: str) -> str:
    return target.rpartition(".")[0]


def _reshaped(graph: Graph, name: str) -> str:
    """What lies in memory, element by element, as this value does."""
    node = graph[name]
    while isinstance(node.payload, View) and (
        node.payload.kind == "reshape" or node.type == graph[node.inputs[0]].type
    ):
        node = graph[node.inputs[0]]
    return node.name


def _is_free(plan: Plan, buffer: str, value: str, in_turns: frozenset[str]) -> bool:
    """Whether a kernel makes the value, whichever way is taken, when the old one is over."""
    graph = plan.graph
    if graph[value].type.dtype != graph[buffer].type.dtype or graph[value].op == "view":
        return False
    returned = {graph.base(name) for name in refs(graph.outputs)}
    assigned = [graph.base(new) for _, new in graph.mutations]
    if returned & {buffer, value} or buffer in assigned or assigned.count(value) > 1:
        return False
    for way in (plan.regions, plan.library):
        made = [i for i, region in enumerate(way) if _makes(region, value)]
        if len(made) != 1 or way[made[0]].program is None:
            return False
        readers = [i for i, region in enumerate(way) if buffer in _read(graph, region)]
        if max(readers, default=0) > made[0] or any(value in _read(graph, r) for r in way):
            return False
        if any(way[i].name in in_turns for i in (*made, *readers)):
            return False
    return True


def _makes(region: Region, value: str) -> bool:
    return any(b.name == value for b in region.outputs)


def _read(graph: Graph, region: Region) -> set[str]:
    return {graph.base(name) if name in graph.by_name else name for name in region.reads}


def _updates(kernel: Kernel, buffer: str, value: str) -> bool:
    """Whether a kernel may store the value in the buffer, from which it may compute it."""
    if type(kernel) is not Kernel:  # the others store by tiles
        return False
    program = kernel.program
    (store,) = (s for s in program.stores if s.access.buffer == value)
    others = [stage.expr for stage in program.stages]
    others += [s.expr for s in program.stores if s is not store]
    if any(access.buffer == buffer for expr in others for access in _loads(expr)):
        return False
    own = [access for access in _loads(store.expr) if access.buffer == buffer]
    alike = all(access == replace(store.access, buffer=buffer) for access in own)
    once = kernel.template.updates and _is_spread(program, store) and not _repeats(kernel)
    return not own or (alike and once)


def _is_spread(program: Program, store: Store) -> bool:
    """Whether each row, segment or element has a place of its own."""
    inside = {"row": (), "segment": program.outer, "element": program.elements}
    atoms = [a for a in (*program.rows, *inside[store.level]) if program.sizes[a] != 1]
    return all(store.access.stride(atom) != 0 for atom in atoms)


def _loads(expr: Expr) -> list[Access]:
    found = [leaf.value for leaf in leaves(expr, "load")]
    return [access for access in found if isinstance(access, Access)]


def _repeats(kernel: Kernel) -> bool:
    """Whether some rows are taken twice: the last vector on the CPU begins early (strips.hpp)."""
    constants = dict(kernel.config.constants)
    if "kHigh" not in constants or constants["kVec"] == 1:
        return False
    whole = constants["kRun"] > 0 and constants["kHigh"] % constants["kVec"] == 0
    return constants["kLow"] > 0 or not whole


def _counts(kernel: Kernel) -> bool:
    """Whether there is a first row in every call, which is stored once."""
    rows = kernel.program.count(kernel.program.rows)
    known = isinstance(rows, int) and rows > 0
    return known and kernel.template.symbol in OVER_ROWS


def stored(graph: Graph, kernel: Kernel, found: InPlace) -> Kernel:
    """The kernel with its stores, and its counts, in buffers."""
    program = kernel.program
    hosted = {name for name, value in found.counted.items() if value in kernel.writes}
    if not hosted and found.stored.keys().isdisjoint(kernel.writes):
        return kernel
    by = {counter.buffer: counter.by for counter in graph.counters}
    counts = tuple((name, by[graph.targets[name]]) for name in found.counted if name in hosted)
    stores = tuple(_turned(store, found) for store in program.stores)
    return replace(kernel, program=replace(program, stores=stores, counts=counts))


def _turned(store: Store, found: InPlace) -> Store:
    name = store.access.buffer
    return replace(store, access=replace(store.access, buffer=found.stored.get(name, name)))


def without(task: Task, found: InPlace) -> Task:
    """The task without memory for what is stored in place, and without that as its result."""
    results = tuple(name for name in task.results if name not in found.stored)
    return replace(task, steps=_steps(task.steps, found), results=results)


def _steps(steps: tuple[Step, ...], found: InPlace) -> tuple[Step, ...]:
    kept: list[Step] = []
    for step in steps:
        if isinstance(step, Choice):
            ways = (_steps(step.steps, found), _steps(step.otherwise, found))
            kept.append(replace(step, steps=ways[0], otherwise=ways[1]))
        elif not isinstance(step, Alloc) or step.buffer.name not in found.stored:
            kept.append(step)
    return tuple(kept)
