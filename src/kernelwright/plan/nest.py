"""The loop nest of a kernel: which axes are its rows, which its elements, and in which order.

In: stages and stores over atoms (a Program without a nest), the sets of atoms that they reduce, and
the order in which the domain has its axes. Out: the Program. Axes are ordered as the memory holds
them that the kernel reads most of, so that neighbouring lanes read neighbours.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from kernelwright.graph import hint
from kernelwright.plan.limits import Limits
from kernelwright.plan.model import Program, flat_run
from kernelwright.plan.walks import joined
from kernelwright.plan.windows import is_window, taken_together, taken_whole

# Lanes of the widest vectors that there are.
LANES = 16


def nested(
    draft: Program, axes: list[int], inner: frozenset[int], whole: frozenset[int], limits: Limits
) -> Program:
    """Order the atoms as memory holds them, and part them into rows and elements.

    A row is reduced over the atoms `whole`, a segment of it over `inner`; where both are the same
    there are no segments. `axes` are all atoms as the domain has them.
    """
    order = axes if inner != whole else _memory_order(draft, axes)
    if not draft.stages:
        run = flat_run(tuple(order), draft.sizes, draft.coordinates)
        return replace(draft, rows=tuple(order[: len(order) - len(run)]), inner=run)
    rows = tuple(a for a in order if a not in whole)
    outer = tuple(a for a in order if a in whole - inner)
    last = tuple(a for a in order if a in inner)
    nest = replace(draft, rows=rows, outer=outer, inner=last)
    short = _short(nest, limits.one_thread)
    nest = joined(nest) if short and is_window(nest) else nest
    together = taken_together(nest) if short else None
    if not short and _short(nest, sys.maxsize):
        together = taken_whole(joined(nest))
    if together is not None:
        return together
    across = bool(order) and order[-1] not in whole
    return replace(nest, strided=across or _side_by_side(nest, limits))


def _side_by_side(nest: Program, limits: Limits) -> bool:
    """Whether rows are so short that more of them than of their elements fill a vector."""
    if not _short(nest, limits.side_by_side) or not nest.rows:
        return False
    across, along = (
        nest.count(flat_run(atoms, nest.sizes, nest.coordinates))
        for atoms in (nest.rows, nest.elements)
    )
    return min(hint(across), LANES) > min(hint(along), LANES)


def _short(nest: Program, most: int) -> bool:
    """Whether only results of whole rows are stored, of at most so many elements each."""
    count = nest.count(nest.elements)
    whole = all(not s.segment for s in nest.stages)
    whole = whole and all(s.level == "row" for s in nest.stores)
    return whole and isinstance(count, int) and count <= most


def _memory_order(draft: Program, axes: list[int]) -> list[int]:
    accesses = draft.loads if draft.stages else [s.access for s in draft.stores]
    best = max(accesses, key=lambda a: len(a.atoms & draft.sizes.keys()), default=None)
    known = best.atoms if best else frozenset()
    order = sorted(
        (a for a in axes if a in known), key=lambda a: -abs(hint(best.stride(a))) if best else 0
    )
    # What it does not vary with goes where the domain has it, but not to the very end.
    for place, atom in reversed(list(enumerate(axes))):
        if atom not in known:
            behind = axes[place + 1] if place + 1 < len(axes) else None
            order.insert(order.index(behind) if behind in order else 0, atom)
    return order
