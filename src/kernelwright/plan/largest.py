"""What a convolution hands over in the place of results: the largest of each window of them.

In: the walk of a program that begins with a maximum over windows. Out: the windows, the same walk
over them, and which channels want the smallest. max(f(x)) is f(max(x)) for an f that never
decreases, so f runs on one element of each window; it is f(min(x)) for one that never increases. A
norm's scale makes f the one or the other, channel by channel: these are told to the kernel, which
multiplies their weights by -1. Windows that overlap are seen so or not at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from kernelwright.expr import Expr, leaves
from kernelwright.plan.convolutions import ConvForm
from kernelwright.plan.model import Access, Coordinate, Program
from kernelwright.plan.walks import CHANNEL, Digit, Pool, Walk, moved, side_by_side, split

EIGHT = 8  # neighbours along x that four threads have together
# Functions that never decrease, of either argument or of the first one; none makes a NaN.
EITHER = ("add", "maximum", "minimum")
BOUNDED = ("relu", "relu6", "clamp", "hardtanh", "hardsigmoid")
FIRST = ("sub", *BOUNDED, "sigmoid", "tanh", "exp", "expm1", "erf", "softsign")


@dataclass(frozen=True)
class ByChannel:
    """An operand with one number for each channel: element `first + step * channel`."""

    buffer: str
    first: int
    step: int


@dataclass(frozen=True)
class Largest:
    """Of the windows of a pool. Channels for which an odd number of `signs` is negative want the
    smallest."""

    pool: Pool
    signs: tuple[ByChannel, ...] = ()


class _Unordered(Exception):
    """The first stage does not follow the order of what it is given."""


def largest(walk: Walk, form: ConvForm) -> Largest | None:
    """As far as registers go, what the program may be given alone; None: each result.

    A transposed convolution makes results that are a stride apart together; any other one has
    neighbours in one warp. Windows that overlap are taken whole.
    """
    if not walk.has_own:
        return None
    try:
        signs = _signs(walk)
    except _Unordered:
        return None
    if form.transposed and max(form.stride) > 1:
        strides = enumerate(form.stride, 2)
        whole = all(_inner_window(walk, axis) % n == 0 for axis, n in strides if n > 1)
        fits = whole and not signs and walk.pool is None
        return Largest(side_by_side(form.stride, form.out_size)) if fits else None
    if walk.pool is not None:
        return Largest(walk.pool, signs)
    depth, height, width = (_inner_window(walk, axis) for axis in (2, 3, 4))
    windows = depth, height, math.gcd(width, EIGHT)
    return Largest(side_by_side(windows, form.out_size), signs) if max(windows) > 1 else None


def over_windows(walk: Walk, pool: Pool) -> Walk:
    """The same walk where the kernel hands over one number for each window alone."""
    program, digits = walk.program, list(walk.digits)
    for axis, (width, step) in enumerate(zip(pool.window, pool.step, strict=True), 2):
        if width == 1:
            continue
        inner = walk.of(axis)[-1]
        size = int(str(inner.size))
        program = split(program, inner.atom, width)
        outer, gone = (max(program.sizes) - i for i in (1, 0))
        program = _without(_without(program, gone), outer if size == width else None)
        shorter = [replace(d, step=d.step // step) for d in walk.of(axis)[:-1]]
        shorter += [Digit(outer, axis, 1, size // width)] if size > width else []
        digits = [d for d in digits if d.axis != axis] + shorter
    digits.sort(key=lambda d: (d.axis, -d.step))
    sample, channels, *_ = walk.extents
    return Walk(program, walk.value, tuple(digits), (sample, channels, *pool.count), walk.scales)


def _inner_window(walk: Walk, axis: int) -> int:
    """How many neighbours along an axis are reduced, if all windows on it begin at multiples."""
    digits = walk.of(axis)
    inner = digits[-1] if digits else None
    if inner is None or inner.step != 1 or inner.atom not in walk.reduced:
        return 1
    return math.gcd(int(str(inner.size)), *(d.step for d in digits[:-1]))


def _without(program: Program, atom: int | None) -> Program:
    """The program without an atom that nobody has to tell apart any more."""
    if atom is None:
        return program

    def move(at: Coordinate) -> Coordinate:
        return Coordinate(tuple((a, s) for a, s in at.strides if a != atom), at.offset)

    return replace(
        moved(program, move),
        sizes={a: s for a, s in program.sizes.items() if a != atom},
        inner=tuple(a for a in program.inner if a != atom),
    )


# ---- order -----------------------------------------------------------------------------------


def _signs(walk: Walk) -> tuple[ByChannel, ...]:
    """What the order of results depends on; raises where nothing else may be known of them."""
    stages, stores = walk.program.stages, walk.program.stores
    if not stages or stages[0].kind != "max" or walk.program.segmented:
        raise _Unordered
    others = [s.expr for s in stages[1:]] + [s.expr for s in stores]
    if any(walk.is_read_by(expr) for expr in others) or any(s.level != "row" for s in stores):
        raise _Unordered
    found = _Order(walk)
    found.follow(stages[0].expr)
    # Of a norm: where a result is infinite, what it is scaled by is NaN, and so is all that comes
    # of it. Elsewhere a scale of zero would have to find an infinity that is not the largest.
    if found.signs and not found.normalises:
        raise _Unordered
    return tuple(found.signs)


class _Order:
    """Goes from the first stage down to the result, and notes what could turn the order around."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.signs: list[ByChannel] = []
        self.normalises = False

    def follow(self, expr: Expr) -> None:
        while expr.op != "load":
            inside = [arg for arg in expr.args if self.walk.is_read_by(arg)]
            if len(inside) != 1:
                raise _Unordered
            others = [arg for arg in expr.args if arg is not inside[0]]
            if any(self.varies(other) for other in others):
                raise _Unordered
            if expr.op == "mul":
                self.scale(others[0])
            elif expr.op not in EITHER and (expr.op not in FIRST or expr.args[0] is not inside[0]):
                raise _Unordered
            expr = inside[0]
        if isinstance(expr.value, Access) and expr.value.within:
            raise _Unordered

    def varies(self, expr: Expr) -> bool:
        """Whether it is not the same for a whole window."""
        for leaf in (e for op in ("load", "index", "inside") for e in leaves(expr, op)):
            place = leaf.value
            if not isinstance(place, Access) or place.within or place.atoms & self.walk.reduced:
                return True
        return False

    def scale(self, factor: Expr) -> None:
        if factor.op == "rsqrt" or self.is_scale(factor):
            self.normalises = True
        elif factor.op == "const":
            if not float(str(factor.value)) > 0:
                raise _Unordered
        elif factor.op == "load" and isinstance(factor.value, Access):
            self.signs.append(self.by_channel(factor.value))
        else:
            raise _Unordered

    def is_scale(self, factor: Expr) -> bool:
        return isinstance(factor.value, Access) and factor.value.buffer in self.walk.scales

    def by_channel(self, access: Access) -> ByChannel:
        digits = self.walk.of(CHANNEL)
        if not access.atoms <= {d.atom for d in digits} or not digits:
            raise _Unordered
        last, first = digits[-1], access.offset
        pitch = access.stride(last.atom)
        if not isinstance(first, int) or not isinstance(pitch, int) or pitch % last.step:
            raise _Unordered
        step = pitch // last.step
        if any(access.stride(d.atom) != d.step * step for d in digits):
            raise _Unordered
        return ByChannel(access.buffer, first, step)
