"""What a convolution hands over in the place of results: the mean of each window of them.

In: the walk of a program that begins with a sum over windows which lie side by side. Out: the
convolution whose results are the means of these windows, and the same walk over them. An average
pool is linear, so it is one more convolution, and two are one: along an axis

    y[j] = 1/p sum_{u < p} z[p j + u],   z[m] = sum_t w[t] x[m + t - pad]

has the taps w'[r] = 1/p sum of w[t] for t from r - (p - 1) to r, a stride of p and the same
padding. Of a transposed convolution z[m] = sum_i x[i] w[m + pad - s i], whose stride divides p,
what is left is a convolution with the stride p / s: x[j p/s + r] meets all t from pad - s r on, p
of them.

The weights are not summed here. An infinity of x times weights of either sign is NaN in eager, and
an infinity with their sum: so the kernel sums them up where it packs them, and multiplies one by
one what it has to compute again (kernels/conv_weights.cuh). Halves are never computed again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from kernelwright.expr import Expr, acc, call, const
from kernelwright.plan.convolutions import ConvForm, Extents, Mean
from kernelwright.plan.largest import over_windows
from kernelwright.plan.model import Access, Program
from kernelwright.plan.walks import PLACES, Walk, rebuilt, side_by_side

MOST_TAPS = 256  # of the convolution of means


@dataclass(frozen=True)
class _Axis:
    """The composed convolution along one axis."""

    kernel: int
    stride: int
    padding: int
    first: int
    step: int


def averaged(walk: Walk, form: ConvForm) -> tuple[Walk, ConvForm] | None:
    """The walk over means, and the convolution that makes them; None: it wants each result."""
    window = _window(walk)
    if window is None or not _is_affine(walk):
        return None
    means = mean_of(form, window)
    if means is None or means.taps > MOST_TAPS:
        return None
    shorter = over_windows(walk, side_by_side(window, form.out_size))
    return replace(shorter, program=_of_means(shorter, math.prod(window))), means


def mean_of(form: ConvForm, window: Extents) -> ConvForm | None:
    """The convolution whose results are the means of windows of this one's, side by side.

    None where it is none: with holes, or where a transposed one's windows are no multiples of its
    stride.
    """
    axes = [_composed(form, axis, window[axis]) for axis in range(len(window))]
    found = [axis for axis in axes if axis is not None]
    if len(found) < len(axes) or max(window) == 1 or form.mean is not None:
        return None

    def each(name: str) -> Extents:
        z, y, x = (getattr(axis, name) for axis in found)
        return z, y, x

    return replace(
        form,
        out_size=side_by_side(window, form.out_size).count,
        kernel=each("kernel"),
        stride=each("stride"),
        padding=each("padding"),
        dilation=(1, 1, 1),
        transposed=False,
        mean=Mean(window, form.kernel, each("first"), each("step"), form.transposed),
    )


def pooled_first(form: ConvForm, window: Extents) -> ConvForm:
    """The convolution that makes the same of an input which is averaged at every place."""
    extents = zip(form.in_size, form.padding, window, strict=True)
    z, y, x = (n + 2 * pad - p + 1 for n, pad, p in extents)
    return replace(
        form,
        in_size=(z, y, x),
        out_size=side_by_side(window, form.out_size).count,
        stride=window,
        padding=(0, 0, 0),
    )


def _composed(form: ConvForm, axis: int, window: int) -> _Axis | None:
    extents = (form.kernel, form.stride, form.padding, form.dilation)
    kernel, stride, padding, dilation = (extent[axis] for extent in extents)
    if dilation != 1 and kernel > 1:
        return None
    if not form.transposed:
        if stride != 1:
            return None
        return _Axis(kernel + window - 1, window, padding, 1 - window, 1)
    if window % stride:
        return None
    # The places of x, seen from j p/s, that meet a tap at all.
    first = -((kernel - 1 - padding) // stride)
    last = (padding + window - 1) // stride
    if first > 0 or last < first:
        return None
    return _Axis(last - first + 1, window // stride, -first, padding - first * stride, -stride)


def _window(walk: Walk) -> Extents | None:
    """The places that the first stage sums up, along each axis; None where it is no such sum.

    Nobody else may read them, nor what is other from place to place of a window.
    """
    program = walk.program
    if walk.pool is not None or not walk.has_own or len(program.stages) != 1 or program.segmented:
        return None
    (stage,) = program.stages
    inner = [digits[-1] if (digits := walk.of(axis)) else None for axis in PLACES]
    summed = [d if d and d.atom in walk.reduced and d.step == 1 else None for d in inner]
    atoms = {d.atom for d in summed if d is not None}
    others = [a.at for a in program.accesses if a.buffer != walk.value] + program.asked
    if stage.kind != "sum" or atoms != walk.reduced or any(at.atoms & atoms for at in others):
        return None
    if any(store.level != "row" or walk.is_read_by(store.expr) for store in program.stores):
        return None
    window = [int(str(d.size)) if d else 1 for d in summed]
    outer = [d for axis in PLACES for d in walk.of(axis) if d.atom not in atoms]
    if any(d.step % window[d.axis - PLACES[0]] for d in outer):
        return None
    return window[0], window[1], window[2]


def _is_affine(walk: Walk) -> bool:
    """Whether the sum is one of a * x + b, where a and b are the same for a whole window."""
    expr = walk.program.stages[0].expr
    while expr.op != "load":
        inside = [arg for arg in expr.args if walk.is_read_by(arg)]
        first = bool(inside) and expr.args[0] is inside[0]
        if len(inside) != 1 or not (
            expr.op in ("add", "sub", "mul", "neg") or (expr.op == "div" and first)
        ):
            return False
        expr = inside[0]
    return isinstance(expr.value, Access) and not expr.value.within


def _of_means(walk: Walk, count: int) -> Program:
    """The program of elements that are means: nothing is left to sum up."""
    program = walk.program
    mean = program.stages[0].expr
    whole = call("div", acc(0), const(float(count)))

    def leaf(expr: Expr) -> Expr | None:
        if expr is whole:
            return mean
        return call("mul", mean, const(float(count))) if expr is acc(0) else None

    made = rebuilt(replace(program, stages=()), leaf)
    stores = tuple(replace(store, level="element") for store in made.stores)
    return replace(made, rows=(), inner=program.rows, stores=stores, strided=False, together=False)
