"""Rows that are windows: which of them a thread of a GPU takes together.

In: a Program whose rows are short. Out: how many loads windows beside or below each other share.
Neighbours in a warp take windows beside each other (the last axis of the rows), so that their loads
are neighbours in memory; one thread takes some that lie below each other (the axis before), so that
what these share it loads once.
"""

from __future__ import annotations

from itertools import product as combinations

from kernelwright.graph import as_dim, hint
from kernelwright.plan.model import Access, Program

LANES = (4, 2)
# The share of loads that must be left for windows to be taken together.
WORTH = 0.85
# Loads of a thread: it takes several small windows even if they share nothing, to wait for all of
# them at once.
IN_FLIGHT = 32


def is_window(program: Program) -> bool:
    """Whether rows begin within one another."""
    widest = _widest(program)
    if widest is None or not program.rows:
        return False
    steps = [widest.stride(a) for a in program.rows[-2:]]
    count = program.count(program.elements)
    return isinstance(count, int) and any(isinstance(s, int) and 0 < s < count for s in steps)


def below_each_other(program: Program) -> int:
    """How many windows a thread should take, of those along the last row axis but one; 0: one."""
    if len(program.rows) < 2 or not is_window(program) or not _are_beside(program):
        return 0
    down, size = program.rows[-2], program.sizes[program.rows[-2]]
    few = int(str(program.count(program.elements))) * LANES[0] <= IN_FLIGHT
    for lanes in LANES if isinstance(size, int) and not _fills_vectors(program) else ():
        if hint(size) >= lanes and (few or loads(program, down, lanes) <= WORTH):
            return lanes
    return 0


def _are_beside(program: Program) -> bool:
    """Whether windows along the last row axis are nearer than those along the one before."""
    widest, (down, beside) = _widest(program), program.rows[-2:]
    assert widest is not None
    steps = [widest.stride(a) for a in (beside, down)]
    known = [isinstance(n, int) for n in (*steps, program.sizes[beside])]
    return all(known) and 0 < hint(steps[0]) < hint(steps[1])


def _fills_vectors(program: Program) -> bool:
    """Whether windows that share nothing are runs of neighbours, which one load can bring."""
    widest = _widest(program)
    assert widest is not None
    along = program.elements[-1]
    size = program.sizes[along]
    parted = widest.stride(program.rows[-1]) == as_dim(widest.stride(along) * size)
    return parted and widest.stride(along) == 1 and hint(size) % 2 == 0


def loads(program: Program, atom: int, lanes: int) -> float:
    """What so many windows along an atom load together, over what each of them would alone."""
    together = alone = 0
    for access in program.loads:
        inside = [(access.stride(a), program.sizes[a]) for a in program.elements]
        if all(stride == 0 for stride, _ in inside):
            continue  # once for a window in any case
        step = access.stride(atom)
        if not all(isinstance(n, int) for n in (step, *(n for pair in inside for n in pair))):
            return 1.0
        reach = [[int(str(s)) * i for i in range(int(str(n)))] for s, n in inside if s != 0]
        window = {sum(places) for places in combinations(*reach)}
        alone += lanes * len(window)
        together += len({v * int(str(step)) + place for v in range(lanes) for place in window})
    return together / alone if alone else 1.0


def _widest(program: Program) -> Access | None:
    return max(program.loads, key=lambda a: len(a.atoms), default=None)
