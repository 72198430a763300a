"""Programs between tensors whose neighbours lie along different axes: in which blocks they turn.

In: a program without reductions. Out: the same program nested as rows x down x across, and the
Config of kernels/turned.cuh; None where all that is read and written whole lies alike, so that a
flat grid serves. `across` is the shorter of the two runs: the channels of a tensor in channels_last
whose other side has them first. On a CPU lanes go down, and the last of its rows across: so what is
gathered, or scattered, lies a few channels apart and not whole pictures, which may all want the
same place in a cache.
"""

from __future__ import annotations

from dataclasses import replace

from kernelwright.graph import Dim, Graph, hint, quotient
from kernelwright.lower.config import CPU_LANES, Config
from kernelwright.plan.model import Access, Program, element_type, flat_run

THREADS = 256
# Elements across that a warp covers, of 32 and more down: whole sectors of 32 bytes both ways.
WARP_ACROSS = 16
# Elements of a run that a block holds whole, so that what lies across is one run of memory: pixels
# of few channels, the taps of a weight.
FEW = 9


def turned(graph: Graph, program: Program) -> tuple[Program, Config] | None:
    """The program nested anew, and how threads lie over it."""
    nested = _nested(program)
    if nested is None:
        return None
    across, down = _block(graph, nested)
    count = int(str(nested.count(nested.inner)))
    wide = min(WARP_ACROSS if down == 4 else WARP_ACROSS // 2, count)
    constants = (
        ("kDown", down),
        ("kAcross", across),
        ("kWarpAcross", _power_below(max(1, wide // across))),
        ("kThreads", THREADS),
    )
    why = "neighbours lie along two axes: blocks are turned in registers"
    return nested, Config("turned", constants, why)


def tiled(program: Program) -> tuple[Program, Config] | None:
    """The same for a CPU (kernels/tiled.hpp)."""
    nested = _nested(program)
    if nested is None:
        return None
    run, across = (nested.count(atoms) for atoms in (nested.outer, nested.inner))
    if not isinstance(run, int):
        return None
    rows = (*nested.rows, *nested.inner)
    nested = replace(nested, rows=rows, outer=(), inner=nested.outer)
    if nested.lanes != nested.inner:
        return None
    constants = (("kVec", min(CPU_LANES, run)), ("kRun", run), ("kAcross", int(str(across))))
    return nested, Config("tiled", constants, "neighbours lie along two axes: tiles of both")


def _nested(program: Program) -> Program | None:
    """Rows, the run that is down, and the run that is across, if there are two."""
    if program.stages or len(program.coordinates) != len(program.accesses):
        return None
    by_lane: dict[int, Access] = {}
    for access in program.accesses:
        if access.atoms == frozenset(program.sizes):
            lane = next((a for a, stride in access.strides if stride == 1), None)
            if lane is not None:
                by_lane.setdefault(lane, access)
    if len(by_lane) != 2:
        return None
    runs = [_run(program, access) for access in by_lane.values()]
    if set(runs[0]) & set(runs[1]):
        return None
    sizes = [program.count(run) for run in runs]
    known = [i for i in (0, 1) if isinstance(sizes[i], int)]
    if not known:
        return None
    inner = min(known, key=lambda i: hint(sizes[i]))
    order = (*program.rows, *program.outer, *program.inner)
    rows = tuple(a for a in order if a not in runs[0] and a not in runs[1])
    nested = replace(program, rows=rows, outer=runs[1 - inner], inner=runs[inner], strided=False)
    return nested if _strides_are_known(nested) else None


def _strides_are_known(nested: Program) -> bool:
    """A free batch may be the stride of an axis; the compiler must know those of a block."""
    axes = (nested.inner[-1], nested.outer[-1])
    return all(isinstance(access.stride(a), int) for access in nested.accesses for a in axes)


def _run(program: Program, access: Access) -> tuple[int, ...]:
    order = sorted(program.sizes, key=lambda a: -hint(access.stride(a)))
    return flat_run(tuple(order), program.sizes, program.coordinates)


def _block(graph: Graph, program: Program) -> tuple[int, int]:
    """How many lanes across and down divide the runs, and begin where vectors may."""
    count = int(str(program.count(program.inner)))
    for across in (*((count,) if count <= FEW else ()), 4, 2, 1):
        for down in (4, 2, 1):
            if _divides(program, across, down) and _aligned(graph, program, across, down):
                return across, down
    return 1, 1


def _divides(program: Program, across: int, down: int) -> bool:
    sides = ((program.inner, across), (program.outer, down))
    return all(quotient(program.count(run), width) is not None for run, width in sides)


def _aligned(graph: Graph, program: Program, across: int, down: int) -> bool:
    inner, outer = program.inner[-1], program.outer[-1]
    for access in program.accesses:
        size = element_type(graph, access.buffer).itemsize
        whole_run = access.stride(outer) == across  # of kernels/block.cuh
        if access.stride(inner) == 1:
            width = across * down if whole_run else across
        elif access.stride(outer) == 1:
            width = down
        else:
            continue
        vector = _vector(width, size)
        inside = (*program.inner, *program.outer) if whole_run else program.inner
        if access.stride(inner) != 1:
            inside = program.outer
        steps: list[Dim] = [s for a, s in access.strides if a not in inside]
        if any(quotient(n, vector) is None for n in (access.offset, *steps)):
            return False
    return True


def _power_below(number: int) -> int:
    return int(2 ** (number.bit_length() - 1))


def _vector(count: int, size: int) -> int:
    """The widest vector of which so many elements are whole ones, as the compiler finds it."""
    width = 16 // size
    while count % width:
        width //= 2
    return width
