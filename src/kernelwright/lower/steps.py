"""The host side of a model as data: what a call does, in order.

A step allocates, launches a kernel, calls the library, or chooses between ways by guards on sizes
and on the machine. lower/tasks.py makes them, and emit/steps.py prints them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv

from kernelwright.graph import Call, Dim, as_dim
from kernelwright.plan.model import Buffer
from kernelwright.targets.target import HostWay, Loop

PANEL = 64  # rows and depth of the panels that operands are split into
# What loops that split work with besides the operands; the others have null pointers there.
SPLIT_OPERANDS = ("left_halves", "left_scales", "right_halves", "right_scales", "progress")
# The numbers behind a product's sizes: what runtime/products.py decides, and what is frozen.
DECISIONS = ("tiles", "clusters", "early", "frozen")
# What a thin product works with: `sums` are those of each part of the depth. (Of long rows that
# many blocks share, they are those of each part of a row.)
THIN_OPERANDS = ("left_halves", "left_scales", "sums", "right_scales")
# What a convolution works with: its weight as the tensor cores want it.
CONV_OPERANDS = ("packed_weight", "weight_scales")
# Memory that every product calls the same.
WORKSPACE = tuple(dict.fromkeys((*SPLIT_OPERANDS, *THIN_OPERANDS, *CONV_OPERANDS)))


@dataclass(frozen=True)
class Guard:
    """A condition: on the machine, on the file's switch, or on a size against a limit.

    A machine has a `capability`, the one whose instructions a kernel is made of. For a weight that
    is `frozen`, the name of its target, the limit is `frozen_limit`. A CPU may have one of several
    `ways` for so many rows.
    """

    kind: str
    size: Dim = 0
    limit: int = 0
    frozen: str = ""
    frozen_limit: int = 0
    capability: tuple[int, int] | None = None
    ways: tuple[HostWay, ...] = ()

    def __str__(self) -> str:
        if self.ways:
            return f"{self.size} rows of {' or '.join(map(str, self.ways))}"
        if self.capability is not None:
            return f"{self.kind} {self.capability[0]}.{self.capability[1]}"
        return f"{self.size} {self.kind} {self.limit}" if self.limit else self.kind


GENERATED = Guard("generated")


def machine_of(loop: Loop) -> Guard:
    """The machine is one that a main loop is made for."""
    return Guard("capability", capability=loop.tiling.capability)


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
class Decide:
    """How a product of these sizes is launched, by its rule, while recording.

    `frozen` is the name of the flag for a weight that may be, or 0.
    """

    rows: Dim
    batch: Dim
    rule: tuple[object, ...]
    frozen: str | int

    def __str__(self) -> str:
        return f"{', '.join(DECISIONS[:3])} = decided for {self.batch} x {self.rows} rows"


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


@dataclass(frozen=True)
class Slices:
    """A library convolution and the kernels after it, in turns on slices of the batch.

    A sample has so many bytes `each`, and a `slice` so many for every thread, but the `fewest`
    samples at least. `outputs` are results as a whole, `inside` those that exist for one slice at
    a time.
    """

    batch: Dim
    each: int
    slice: int
    fewest: int
    left: str
    call: Call
    product: str
    outputs: tuple[Buffer, ...]
    inside: tuple[Buffer, ...]
    launches: tuple[Launch, ...]

    def __str__(self) -> str:
        turns = "; ".join(str(launch) for launch in self.launches)
        return f"in slices of {self.batch} samples: {self.product} = {self.call}, then {turns}"


@dataclass(frozen=True)
class Invoke:
    """A routine on these values and weights: what it leaves are the results."""

    routine: str
    given: tuple[str, ...]
    targets: tuple[str, ...]
    results: tuple[str, ...]

    def __str__(self) -> str:
        given = ", ".join((*self.targets, *self.given))
        return f"{', '.join(self.results)} = {self.routine}({given})"


Step: TypeAlias = "Alloc | Kept | Decide | Launch | Library | Choice | Panels | Slices | Invoke"


def every(steps: Iterable[Step]) -> Iterator[Step]:
    """The steps, and those of all ways inside of them."""
    for step in steps:
        yield step
        if isinstance(step, Choice):
            yield from every((*step.steps, *step.otherwise))


def shown(steps: tuple[Step, ...], indent: str = "  ") -> str:
    return "\n".join(f"{indent}{line}" for s in steps for line in str(s).splitlines())


@dataclass(frozen=True)
class Task:
    """The steps that carry out a region, and what they leave for others."""

    name: str
    steps: tuple[Step, ...]
    results: tuple[str, ...]


@dataclass(frozen=True)
class Frozen:
    """A weight that freeze() can keep in halves, and the kernel that knows how to split it.

    `machine` is the guard of that kernel.
    """

    target: str
    weight: str
    kernel: str
    machine: Guard
    shape: tuple[int, ...]
    rows: int
    depth: int
    planes: int


def halves(side: str, matrices: Dim, rows: Dim, depth: Dim, planes: int) -> tuple[Buffer, Buffer]:
    """Matrices as so many of float16, in panels, and two numbers about each of their rows."""
    panels = (matrices, whole(rows), whole(depth), planes, PANEL, PANEL)
    return (
        Buffer(f"{side}_halves", panels, torch.float16),
        Buffer(f"{side}_scales", (matrices, rows, 2), torch.float32),
    )


def whole(size: Dim) -> Dim:
    """Panels that hold so many rows."""
    return as_dim(FloorDiv(sympy.sympify(size) + PANEL - 1, PANEL))
