"""The box of windows that a thread takes: how many along each axis, and how it reads their places.

In: a program of windows that are taken together (plan/windows.py). Out: a Box. Every box whose
registers a thread has is listed, with what it costs the nearest cache; of those that are fast
enough the smallest is taken, since many threads hide each other's waiting.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product as combinations

from kernelwright.expr import Expr, cost, leaves
from kernelwright.graph import Dim, Graph, hint
from kernelwright.plan.model import Access, Coordinate, Program, Range, element_type
from kernelwright.plan.windows import Axis, Sight, beside, resting, sight

WIDTHS = (8, 4, 2, 1)
VECTOR = 16  # bytes of the widest load
MOST_WINDOWS = 16  # of a thread, along an axis
# Results of a thread, and registers for them and for the lines of places that they are made of;
# those that it needs beside these.
MOST_RESULTS, MOST_FLOATS, OTHERS = 32, 128, 24
# Clocks of a multiprocessor for 32 results. Instructions are issued on four schedulers, three for a
# load or a store, and some by which a thread finds its place; while few warps run, schedulers are
# idle, half of the time with eight. A thread lives so long however little it does. (H200, a window
# of 2 x 2 to each thread: 90 us for 17 million of them, 62 us for 8 million; 2400 to 2600 clocks.)
SCHEDULERS, INSTRUCTIONS, SETUP, HALF, LIFE = 4, 3, 40, 8, 2400
# Memory brings so many bytes a clock, and the rest may take a part of the time that it takes.
BYTES_A_CLOCK, BESIDE_MEMORY = 20.0, 0.65
WARP, LINE = 32, 128  # threads, and bytes that the nearest cache finds at once
REGISTERS, THREADS, BLOCK = 65536, 2048, 256  # of a multiprocessor, and threads of a block
SCATTERED = 1.5  # stores that are no runs, of which the next cache takes parts of sectors
NEAR = 1.05  # the best
ENOUGH, SAMPLES = 1 << 16, 64  # threads that fill a GPU, of a batch of so many


@dataclass(frozen=True)
class Box:
    """`windows` along each axis; places in vectors of `width`, the first at `phase` in its own."""

    windows: tuple[int, ...]
    width: int
    phase: int

    @property
    def results(self) -> int:
        return math.prod(self.windows)


def box_of(graph: Graph, program: Program) -> Box:
    found = sight(program)
    assert found is not None, "the planner takes windows together that have a Sight"
    listed = [(_clocks(graph, program, found, b), b) for b in _boxes(graph, program, found)]
    memory = WARP * _bytes(graph, program, found) / BYTES_A_CLOCK
    enough = max(NEAR * min(clocks for clocks, _ in listed), BESIDE_MEMORY * memory)
    return min(
        (box.results, clocks, box.windows, box) for clocks, box in listed if clocks <= enough
    )[-1]


@dataclass(frozen=True)
class Picture:
    """All `windows` that look at `lines` of places, as long as `line`, read as those of a Box."""

    windows: tuple[int, ...]
    lines: int
    line: int
    width: int
    phase: int

    @property
    def totals(self) -> int:
        """What a thread has of windows over all axes but the last."""
        return math.prod(self.windows[:-1]) * self.width


def picture_of(graph: Graph, program: Program, vector: int = VECTOR) -> Picture:
    """With vectors of so many bytes, where places lie so."""
    found = sight(program)
    assert found is not None, "large windows have a Sight"
    width, phase = _vectors(graph, found, vector, vector)
    *lines, line = (axis.places(axis.size) for axis in found.axes)
    windows = tuple(axis.size for axis in found.axes)
    return Picture(windows, math.prod(lines), line, width, phase)


def _boxes(graph: Graph, program: Program, found: Sight) -> Iterator[Box]:
    """The boxes that there are registers and enough windows for; single windows always."""
    rows = hint(program.count(program.rows), SAMPLES)
    *before, last = found.axes
    for across in (n for n in WIDTHS if _in_vectors(graph, program, found, last, n)):
        width, phase = _vectors(graph, found, across)
        for down in combinations(*(_counts(axis) for axis in before)):
            box = Box((*down, across), width, phase)
            fits = box.results <= MOST_RESULTS and _floats(found, box) <= MOST_FLOATS
            if box.results == across or (fits and rows >= ENOUGH * box.results):
                yield box


def _counts(axis: Axis) -> list[int]:
    """Windows along an axis; those of a short one are parted evenly."""
    if axis.tap is None:
        return [1]
    even = [axis.size // parts for parts in (1, 2) if axis.size % parts == 0]
    return sorted({n for n in (MOST_WINDOWS, *WIDTHS, *even) if n <= min(MOST_WINDOWS, axis.size)})


def _floats(found: Sight, box: Box) -> int:
    """The results of a thread, and lines of places: one for each run of windows that weighs it."""
    own = box.windows[-1]
    lines = box.results // own if found.weighs else 1
    return box.results + lines * found.axes[-1].places(own)


def _places(found: Sight, box: Box) -> int:
    return math.prod(a.places(n) for a, n in zip(found.axes, box.windows, strict=True))


def _clocks(graph: Graph, program: Program, found: Sight, box: Box) -> float:
    """For 32 results: instructions, and what the nearest cache takes for loads and stores.

    It takes as many clocks for one of them as this moves words, or meets lines.
    """
    elements, last = hint(program.count(program.elements)), found.axes[-1]
    own, runs = box.windows[-1], box.results // box.windows[-1]
    loads = _lines(found, box) * math.ceil((box.phase + last.places(own)) / box.width)
    loads *= sum(_reads_places(found, a) for a in _seen(found))
    others, met = 0, 0.0
    for access in _beside(found):
        each = own if access.stride(program.rows[-1]) != 0 else 1
        others += elements * each
        met += elements * each * _lines_met(graph, program, found, box, access)
    for store in program.stores:
        vector = store.access.stride(program.rows[-1]) == 1
        apart = _lines_met(graph, program, found, box, store.access)
        clocks = apart * SCATTERED if apart == WARP else max(own if vector else 1, apart)
        others += runs if vector else box.results
        met += clocks * (runs if vector else box.results)
    threads = _threads(found, box)
    schedulers = SCHEDULERS * threads / (threads + HALF * WARP)
    issued = INSTRUCTIONS * (loads + others) + _operations(program, found, box)
    busy = issued / box.results / schedulers + loads / runs + met / box.results
    return _twice(found, box) * max(busy, LIFE * WARP / threads / box.results)


def _operations(program: Program, found: Sight, box: Box) -> float:
    """Instructions of a thread that are neither loads nor stores."""
    elements, last = hint(program.count(program.elements)), found.axes[-1]
    total = SETUP + box.results * cost(*(s.expr for s in program.stores))
    for seen, weighed in zip(found.seen, found.weighed, strict=True):
        total += _places(found, box) * (cost(seen) - cost(*resting(found, seen)))
        if weighed is seen:
            lines = _lines(found, box) * box.windows[-1] * (last.taps - 1)
            total += lines + box.results * elements // last.taps
        else:
            total += box.results * elements * max(1, cost(weighed) - cost(seen))
    return total


def _threads(found: Sight, box: Box) -> int:
    """How many are at work on a multiprocessor: whole blocks, as registers allow."""
    most = min(THREADS, REGISTERS // (OTHERS + _floats(found, box)))
    return max(1, most // BLOCK) * BLOCK


def _bytes(graph: Graph, program: Program, found: Sight) -> float:
    """What a window reads that the ones before it did not, and what it stores."""
    total = sum(element_type(graph, s.access.buffer).itemsize for s in program.stores)
    for access in dict.fromkeys(a for a in _seen(found) if _reads_places(found, a)):
        fresh = math.prod(axis.step for axis in found.axes if axis.step and axis.unit(access.at))
        total += fresh * element_type(graph, access.buffer).itemsize
    return total


def _reads_places(found: Sight, access: Access) -> bool:
    """Whether it is another element at every place of a line, and no line has it already."""
    return all(axis.unit(access.at) for axis in found.axes if axis.step)


def _lines(found: Sight, box: Box) -> int:
    return _places(found, box) // found.axes[-1].places(box.windows[-1])


def _twice(found: Sight, box: Box) -> float:
    """How often results are made: the last box along an axis may have some of its neighbour's."""
    each = zip(found.axes, box.windows, strict=True)
    return math.prod(math.ceil(axis.size / n) * n / axis.size for axis, n in each)


def _lines_met(graph: Graph, program: Program, found: Sight, box: Box, access: Access) -> int:
    """How many lines of the nearest cache the threads of a warp meet at once."""
    near = beside(program)
    (own,) = (n for axis, n in zip(found.axes, box.windows, strict=True) if axis.row == near)
    apart = hint(access.stride(near)) * own * element_type(graph, access.buffer).itemsize
    return max(1, math.ceil(min(apart, LINE) * WARP / LINE))


def _seen(found: Sight) -> list[Access]:
    return [a for expr in found.seen for a in _loads(expr)]


def _beside(found: Sight) -> list[Access]:
    """What windows read for each tap, wherever they are: weights."""
    seen = set(_seen(found))
    return [a for expr in found.weighed for a in _loads(expr) if a not in seen]


# ---- vectors ---------------------------------------------------------------------------------


def _in_vectors(graph: Graph, program: Program, found: Sight, last: Axis, windows: int) -> bool:
    """Whether so many windows along the last axis are stored, and read beside, as whole vectors."""
    if windows == 1:
        return True
    others = [a for s in program.stores for a in (s.access, *_loads(s.expr))] + _beside(found)
    row = program.rows[-1]
    whole = [a for a in others if a.stride(row) == 1]
    sizes = [element_type(graph, a.buffer).itemsize for a in whole or _seen(found)]
    fits = last.size % windows == 0 and max(sizes) * windows <= VECTOR
    return fits and all(_starts(a.at, row, windows) for a in whole)


def _starts(at: Coordinate, row: int, width: int) -> bool:
    """Whether a coordinate is a multiple wherever the last atom of the rows is."""
    return _multiples(width, [at.offset, *(s for a, s in at.strides if a != row)])


def _multiples(width: int, numbers: Iterable[Dim]) -> bool:
    return all(isinstance(n, int) and n % width == 0 for n in numbers)


def _vectors(graph: Graph, found: Sight, across: int, most: int = VECTOR) -> tuple[int, int]:
    """How wide vectors of places are, in so many bytes, and where the first lies in its own.

    They begin at multiples of their width, and padding begins and ends between two of them.
    """
    last = found.axes[-1]
    loads = [a for a in _seen(found) if last.unit(a.at) != 0]
    sizes = [element_type(graph, a.buffer).itemsize for a in loads]
    wider = [1 << n for n in range(most.bit_length() - 1, 0, -1)] if loads else []
    for width in (n for n in wider if max(sizes) * n <= most):
        phases = {_phase(found, a, across, width) for a in loads}
        if len(phases) > 1:
            continue
        (phase,) = phases
        if phase is not None and _parted(found, phase, width):
            return width, phase
    return 1, 0


def _phase(found: Sight, access: Access, across: int, width: int) -> int | None:
    """Where in a vector the first place of a line lies, if that is the same for all lines."""
    last, at = found.axes[-1], access.at
    steps = [*_outside(found, at), *(axis.unit(at) for axis in found.axes[:-1])]
    if last.unit(at) != 1 or not _multiples(width, [*steps, last.step * across]):
        return None
    return (at.offset + last.first) % width if isinstance(at.offset, int) else None


def _parted(found: Sight, phase: int, width: int) -> bool:
    """Whether no end of a range lies inside of a vector of places."""
    last = found.axes[-1]
    for seen in found.seen:
        numbers = [e.value for e in leaves(seen, "index") if isinstance(e.value, Coordinate)]
        if any(last.unit(at) for at in numbers):
            return False
        for part in _ranges(seen):
            unit = last.unit(part.at)
            steps = [*_outside(found, part.at), *(a.unit(part.at) for a in found.axes[:-1])]
            ends = [limit - part.at.offset - last.first + phase for limit in part.limits]
            if unit != 0 and (unit != 1 or not _multiples(width, [*steps, *ends])):
                return False
    return True


def _outside(found: Sight, at: Coordinate) -> list[Dim]:
    """By how much a coordinate moves from picture to picture."""
    inside = {a for axis in found.axes for a in (axis.row, axis.tap)}
    return [step for atom, step in at.strides if atom not in inside]


def _loads(expr: Expr) -> list[Access]:
    return [e.value for e in leaves(expr, "load") if isinstance(e.value, Access)]


def _ranges(expr: Expr) -> list[Range]:
    tests = [e.value for e in leaves(expr, "inside") if isinstance(e.value, Range)]
    return [*tests, *(r for access in _loads(expr) for r in access.within)]
