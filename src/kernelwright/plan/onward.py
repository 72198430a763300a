"""A kernel that reads what a convolution's means became, as a program over these means.

In: the walk of a program over means (averages.py), which stores one value for each of them, and a
program that reads that value. Out: the second program with the first one inside, over the
convolution of means. The planner cannot make one kernel of both, because a pool ends a row and the
next reduction, over channels say, runs over other rows. But with the pool in the weights nothing of
the first is left that waits.
"""

from __future__ import annotations

from collections.abc import Callable

from kernelwright.expr import Expr, leaves, load, substitute
from kernelwright.graph import Dim, Graph, as_dim, product, quotient
from kernelwright.plan.convolutions import ConvForm
from kernelwright.plan.epilogue import Unfit
from kernelwright.plan.model import Access, Coordinate, Program
from kernelwright.plan.reasons import Code
from kernelwright.plan.walks import AXES, Walk, rebuilt, walk

PerAxis = dict[int, Dim]  # of a coordinate, how far it goes with a step along an axis


def onward(means: Walk, form: ConvForm, program: Program, graph: Graph) -> Program:
    """The program over the means themselves; raise Unfit where it is none."""
    store, *others = means.program.stores
    stored = store.access.buffer
    dense = _dense(means.extents)
    as_it_lies = _per_axis(means, store.access.at) == dense and store.access.offset == 0
    asks = any(leaves(store.expr, op) for op in ("index", "inside"))
    if others or means.program.stages or store.access.within or asks or not as_it_lies:
        raise Unfit(Code.WALKS)
    later = walk(program, stored, form, graph)
    if not later.has_own or later.pool is not None:
        raise Unfit(Code.WALKS)

    def again(leaf: Expr) -> Expr | None:
        """What the first program loads, where the second one is."""
        access = leaf.value
        if not isinstance(access, Access):
            return None
        if access.within:
            raise Unfit(Code.WALKS)
        steps = dense if access.buffer == means.value else _per_axis(means, access.at)
        at = _along(later, steps, 0 if access.buffer == means.value else access.offset)
        return load(Access(access.buffer, at))

    inside = substitute(store.expr, again)
    return rebuilt(later.program, _in_place_of(stored, inside))


def _in_place_of(stored: str, inside: Expr) -> Callable[[Expr], Expr | None]:
    def leaf(expr: Expr) -> Expr | None:
        access = expr.value
        return inside if isinstance(access, Access) and access.buffer == stored else None

    return leaf


def _dense(extents: tuple[Dim, ...]) -> PerAxis:
    """Those of a tensor that lies one axis after the other."""
    return {
        axis: as_dim(product(list(extents[axis + 1 :])))
        for axis, extent in enumerate(extents)
        if extent != 1
    }


def _per_axis(walked: Walk, at: Coordinate) -> PerAxis:
    """Raise Unfit where an axis is not walked evenly, or an atom walks none."""
    if not at.atoms <= {digit.atom for digit in walked.digits}:
        raise Unfit(Code.WALKS)
    found: PerAxis = {}
    for axis in range(len(AXES)):
        steps = {quotient(at.stride(d.atom), d.step) for d in walked.of(axis) if d.size != 1}
        step = steps.pop() if steps else 0
        if steps or step is None:
            raise Unfit(Code.WALKS)
        if step != 0:
            found[axis] = step
    return found


def _along(walked: Walk, steps: PerAxis, offset: Dim) -> Coordinate:
    digits = [d for d in walked.digits if d.axis in steps]
    strides = [(d.atom, as_dim(steps[d.axis] * d.step)) for d in digits]
    return Coordinate(tuple(sorted(strides)), offset)
