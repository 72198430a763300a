"""Averages over the space of a convolution: the input is averaged, and little is left to convolve.

The output of a convolution at place m is the sum over taps t of W[t] x[m + t]. Summed over all m,
each W[t] meets one number a channel: the sum of those places of x that the tap t reads. For all
taps together these are an average pool of x, whose windows are as large as the result, from tap to
tap a dilation apart; what remains is a matrix product with the weight as it is. A transposed
convolution that drops nothing reads all of x with every tap.

With strides, and where results are dropped, taps read other places, and many taps make too many
windows for one kernel. Then it is done axis by axis: along each there is one sum over the places
that all taps share (`core`), and a few border places are added to it for each tap. Strides read
every s-th place, so taps of one residue share a core; a transposed convolution, seen from x, reads
without a stride.

Average pooling of windows in the same way: conv(avg_pool(x) at every place), taken at every p-th
place, has p^d times fewer products than the convolution before its pool.

Inputs are summed, weights never: each product x * W of eager's is in exactly one sum, so NaN and
infinities of x land where eager puts them. (Composed kernels, of the size k + p - 1, add weights of
either sign, which turns eager's inf - inf = NaN into an infinity. A kernel that knows of it and
multiplies such products one by one may have them, and reads the input once: plan/averages.py. So
the law is `unless_folded` where the planner has found that one faster.)

Eager averages the errors of its products together with them: over n places the mean is off by a
sqrt(n)th of what one product is. Here one product is all there is. Where torch may round operands
to TF32 that is no loss, for rounded weights are the same at every place. Elsewhere (`in_double`)
what is left of the product is float64's, and means over all of the space are kept as sums of two
parts: numbers rounded to eight bits, whose sums are exact, and the small rest. (12 channels, mean
over 1395 places, sigmoid, inputs around 100: off by 2.9e-6 in float32, by 2e-7 in this way, by 9e-8
in eager.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from kernelwright.graph import Graph, Node, Ref, Shape, TensorType
from kernelwright.pattern import Builder, Exactness, Match, Opt, Pat, Rule, Var, all_of
from kernelwright.rules.biases import CONVOLUTIONS
from kernelwright.rules.conditions import floating, wide
from kernelwright.rules.making import add, cast, joined, mul, over, part, sub, view
from kernelwright.rules.reductions import reduced_axes
from kernelwright.rules.sums import SUMS, axes_of
from kernelwright.rules.windows import AVG_POOLS, each, pool_window, uneven

Build = Callable[[Match, Builder], Ref]

MOST_TAPS = 7
FEWEST_PLACES = 16
MOST_WINDOWS = 49  # of one pool
# Of one window whose average is rounded to float32. (Inputs around 100, 12 channels, windows of 36:
# off by 3.3e-6 where eager is by 9e-7.)
MOST_AVERAGED = 9
SPLIT = 2.0**16 + 1


@dataclass(frozen=True)
class Window:
    """What a convolution does along one axis: sizes before and after, and how places meet."""

    size: int
    result: int
    taps: int
    stride: int
    padding: int
    dilation: int
    transposed: bool

    @property
    def is_pool(self) -> bool:
        """Whether all taps read windows of the same size that lie in a row."""
        return not self.transposed and self.stride == 1 and 2 * self.padding <= self.result

    @property
    def is_whole(self) -> bool:
        """Whether every tap reads all places."""
        return all(self.places(tap) == range(self.size) for tap in range(self.taps))

    def places(self, tap: int) -> range:
        """The places of x that this tap reads, over all places of the result."""
        offset = self.dilation * tap - self.padding
        if self.transposed:
            first = max(0, -(offset // self.stride))
            last = min(self.size - 1, (self.result - 1 - offset) // self.stride)
            return range(first, last + 1)
        first = max(0, -(offset // self.stride))
        last = min(self.result - 1, (self.size - 1 - offset) // self.stride)
        start = offset + self.stride * first
        return range(start, start + self.stride * (last - first) + 1, self.stride)

    def core(self, tap: int) -> range:
        """The places that all taps of this one's residue read."""
        mine = self.places(tap)
        same = [
            r for t in range(self.taps) if (r := self.places(t)) and (r[0] - mine[0]) % r.step == 0
        ]
        return range(max(r[0] for r in same), min(r[-1] for r in same) + 1, mine.step)


def windows(match: Match) -> tuple[Window, ...] | str:
    """One Window for each axis of the space, or why the convolution has none."""
    node, weight = match.node("conv"), match.type("W").shape
    taps, rank = weight[2:], len(weight) - 2
    transposed = node.op.startswith("conv_transpose")
    stride, padding = node.args[3:5]
    dilation = node.args[7] if transposed else node.args[5]
    x = match.type("x").shape[-rank:]
    result = node.type.shape[-rank:]
    if not all(isinstance(n, int) for n in (*x, *result)):
        return "the size of the space is known only at a call"
    if padding == "valid":
        padding = (0,) * rank
    if isinstance(padding, str):
        padding = _same(taps, dilation)
        if padding is None:
            return "the padding is not the same on both sides"
    steps = (each(n, rank) for n in (stride, padding, dilation))
    columns = zip(x, result, taps, *steps, strict=True)
    return tuple(
        Window(int(n), int(m), int(k), s, p, d, transposed) for n, m, k, s, p, d in columns
    )


def _same(taps: Sequence[int], dilation: Sequence[int]) -> tuple[int, ...] | None:
    """The padding that `same` stands for, where it is the same on both sides."""
    both = [d * (k - 1) for k, d in zip(taps, each(dilation, len(taps)), strict=True)]
    return None if any(n % 2 for n in both) else tuple(n // 2 for n in both)


def _groups(match: Match) -> int:
    node = match.node("conv")
    groups: int = node.args[6]
    return groups


def _over_space(graph: Graph, node: Node) -> bool:
    rank = len(graph[node.inputs[0]].type.shape)
    return rank > 2 and {*range(2, rank)} <= {*reduced_axes(node, rank)}


def _has_a_batch(match: Match) -> str | None:
    if len(match.type("x").shape) != len(match.type("W").shape):
        return "the convolution has no batch dimension"
    return None


def _shrinks(match: Match) -> str | None:
    """The sums must be fewer than the places, and each tap must have its places."""
    found = windows(match)
    if isinstance(found, str):
        return found
    if _groups(match) != 1:
        return "the convolution has groups, which a matrix product has not"
    if max(w.taps for w in found) > MOST_TAPS:
        return f"more than {MOST_TAPS} taps along an axis make long borders"
    places = math.prod(w.result for w in found)
    if places < FEWEST_PLACES:
        return f"the convolution has {places} places only"
    sums = [(w, t) for w in found for t in range(w.taps)]
    if not all(w.places(t) and w.core(t) for w, t in sums):
        return "the space is so small that the taps share no places"
    return None


def _sums_of_taps(builder: Builder, x: Ref, axis: int, window: Window) -> Ref:
    """x with, along the axis, one sum for each tap."""
    cores: dict[range, Ref] = {}
    sums = []
    for tap in range(window.taps):
        core = window.core(tap)
        if core not in cores:
            shared = part(builder, x, axis, core.start, len(core), core.step)
            cores[core] = over(builder, "sum.dim_IntList", shared, (axis,))
        total = cores[core]
        for place in window.places(tap):
            if place not in core:
                total = add(builder, total, part(builder, x, axis, place, 1))
        sums.append(total)
    return joined(builder, sums, axis)


def _means_of_taps(builder: Builder, x: Ref, found: Sequence[Window]) -> Ref:
    """x with, in place of its space, one number for each tap: what that adds to the mean."""
    type, rank = builder.type(x), len(found)
    taps = tuple(w.taps for w in found)
    pools = all(w.is_pool and not w.is_whole for w in found)
    if pools and math.prod(taps) <= MOST_WINDOWS:
        columns = ((w.result, w.dilation, w.padding) for w in found)
        sizes, steps, padding = zip(*columns, strict=True)
        pool = (x, sizes, steps, padding, False, True, *((None,) if rank > 1 else ()))
        return builder.node(
            f"avg_pool{rank}d", pool, TensorType((*type.shape[:2], *taps), type.dtype)
        )
    total = _sums(builder, x, found, range(rank))
    return _repeated(builder, mul(builder, total, 1 / _places(found)), found)


def _sums(builder: Builder, x: Ref, found: Sequence[Window], axes: Sequence[int]) -> Ref:
    """x summed along axes of the space: for each tap, or once where all taps read everything."""
    x = over(builder, "sum.dim_IntList", x, [2 + axis for axis in axes if found[axis].is_whole])
    for axis in axes:
        if not found[axis].is_whole:
            x = _sums_of_taps(builder, x, 2 + axis, found[axis])
    return x


def _repeated(builder: Builder, x: Ref, found: Sequence[Window]) -> Ref:
    """The sums with one number for each tap also where that is the same for all."""
    for axis, window in enumerate(found):
        if window.is_whole:
            x = joined(builder, [x] * window.taps, 2 + axis)
    return x


def _places(found: Sequence[Window]) -> int:
    return math.prod(w.result for w in found)


def _mean_of_input(match: Match, builder: Builder) -> Ref:
    found = windows(match)
    assert not isinstance(found, str)
    places = _places(found)
    x = _means_of_taps(builder, match["x"], found)
    x = x if match.root.op == "mean.dim" else mul(builder, x, places)
    return _with_bias(match, builder, _product(match, builder, x, match["W"]), places)


def _mean_in_double(match: Match, builder: Builder) -> Ref:
    """Sums along all axes but the last are averaged over its places, with their errors."""
    found = windows(match)
    assert not isinstance(found, str)
    dtype, places = match.root.type.dtype, _places(found)
    axes = range(len(found))
    plain = len(axes) - 1 if len(found[-1].places(0)) >= FEWEST_PLACES else 0
    parts = _parts(builder, _sums(builder, match["x"], found, axes[:plain]))
    sums_of = (_sums(builder, x, found, axes[plain:]) for x in parts)
    coarse, fine = (_repeated(builder, x, found) for x in sums_of)
    sums = add(builder, cast(builder, coarse, torch.float64), fine)
    y = _product(match, builder, sums, cast(builder, match["W"], torch.float64))
    if match.root.op == "mean.dim":
        y = mul(builder, y, 1 / places)
    return _with_bias(match, builder, cast(builder, y, dtype), places)


def _parts(builder: Builder, x: Ref) -> tuple[Ref, Ref]:
    """x as a number of eight bits and the rest; both add up to what is infinite, too.

    A sum with 2^16 times as much, and back, rounds off sixteen bits. The second clamp changes no
    number: it keeps compilers from a multiply-add, which would not round.
    """
    most = torch.finfo(builder.type(x).dtype).max / 2

    def within(value: Ref, limit: float) -> Ref:
        return builder.node("clamp", (value, -limit, limit), builder.type(x))

    finite = within(x, most / SPLIT)
    scaled = within(mul(builder, finite, SPLIT), most)
    coarse = sub(builder, scaled, sub(builder, scaled, finite))
    return coarse, sub(builder, x, coarse)


def _with_bias(match: Match, builder: Builder, y: Ref, places: int) -> Ref:
    is_mean = match.root.op == "mean.dim"
    if match["b"] is not None:
        y = add(builder, y, match["b"] if is_mean else mul(builder, match["b"], places))
    others = tuple(axis for axis in axes_of(match) if axis < 2)
    return view(builder, over(builder, match.root.op, y, others), match.root.type.shape)


def _product(match: Match, builder: Builder, x: Ref, weight: Ref) -> Ref:
    """Sums of taps times the weight, as a matrix product."""
    shape, dtype = match.type("W").shape, builder.type(weight).dtype
    if match.node("conv").op.startswith("conv_transpose"):
        shape = (shape[1], shape[0], *shape[2:])
        weight = builder.node("transpose", (weight, 0, 1), TensorType(shape, dtype))
    depth = math.prod(int(n) for n in shape[1:])
    batch = match.type("x").shape[0]
    rows = view(builder, x, (batch, depth))
    as_matrix = TensorType((shape[0], depth), dtype)
    matrix = builder.node("reshape", (weight, (shape[0], depth)), as_matrix)
    return builder.node("linear", (rows, matrix, None), TensorType((batch, shape[0]), dtype))


def _pools_first(match: Match) -> str | None:
    found, root, conv = windows(match), match.root, match.node("conv")
    if isinstance(found, str):
        return found
    why = uneven(root)
    if why:
        return why
    readers = match.graph.users[root.name]
    if readers and all(match.graph[r].op == "mean.dim" for r in readers):
        return "the mean that follows can go past the pool and the convolution"
    if any(w.stride != 1 for w in found):
        return "the convolution has a stride"
    kernel, steps = pool_window(root)
    if steps != kernel or max(steps) == 1:
        return "the windows of the pool overlap"
    if any(w.padding > p // 2 for w, p in zip(found, kernel, strict=True)):
        return "the convolution pads by more than half of the pool's window"
    channels = match.type("x").shape[1], conv.type.shape[1]
    if channels[0] > channels[1]:
        return f"the pool would have to read {channels[0]} channels instead of {channels[1]}"
    return None


def _pool_input(match: Match, builder: Builder) -> Ref:
    pooled = _pooled(match, builder)
    return _strided(match, builder, pooled, match["W"], match["b"])


def _pool_input_in_double(match: Match, builder: Builder) -> Ref:
    given = _pooled(match, builder), match["W"], match["b"]
    x, weight, bias = (v if v is None else cast(builder, v, torch.float64) for v in given)
    assert x is not None and weight is not None
    return cast(builder, _strided(match, builder, x, weight, bias), match.root.type.dtype)


def _pooled(match: Match, builder: Builder) -> Ref:
    """The average of x over a window at every place, the convolution's padding included."""
    found, root = windows(match), match.root
    assert not isinstance(found, str)
    (kernel, _), padding = pool_window(root), tuple(w.padding for w in found)
    spaces = zip(found, kernel, strict=True)
    shape: Shape = (
        *match.type("x").shape[:2], *(w.size + 2 * w.padding - p + 1 for w, p in spaces)
    )  # fmt: skip
    pool = (match["x"], kernel, (1,) * len(found), padding, False, True)
    return builder.like(root, *pool, shape=shape, own=True)


def _strided(match: Match, builder: Builder, x: Ref, weight: Ref, bias: Ref | None) -> Ref:
    """The convolution at one place of each window."""
    root, conv = match.root, match.node("conv")
    kernel, _ = pool_window(root)
    unpadded = "valid" if conv.op.endswith(".padding") else (0,) * len(kernel)
    strided = (x, weight, bias, kernel, unpadded)
    dtype = builder.type(weight).dtype
    return builder.like(conv, *strided, shape=root.type.shape, dtype=dtype, own=True)


def in_double(rules: Sequence[Rule], convolves: bool = True) -> tuple[Rule, ...]:
    """The rules where eager's products are float32's, so that its averages are better than that.

    `convolves` says whether the library is fast enough at float64 for a convolution to be left.
    """

    def changed(rule: Rule) -> Rule:
        if rule.name == MEAN:
            return replace(rule, build=_in_float32(rule.build, _mean_in_double))
        if rule.name == POOL_FIRST:
            build = _in_float32(rule.build, _pool_input_in_double)
            fast = _averages_few if convolves else _in_float64
            return replace(rule, build=build, when=all_of(rule.when, fast))
        return rule

    return tuple(map(changed, rules))


def _averages_few(match: Match) -> str | None:
    """What is rounded once for a window is an average, before it is multiplied."""
    kernel, _ = pool_window(match.root)
    if match.root.type.dtype == torch.float32 and math.prod(kernel) > MOST_AVERAGED:
        return f"eager's average over {math.prod(kernel)} places would be the more exact one"
    return None


def _in_float64(match: Match) -> str | None:
    if match.root.type.dtype == torch.float32:
        return "a convolution in float64 would be left, for which the library has no fast kernel"
    return None


def _in_float32(plain: Build, double: Build) -> Build:
    """`double` for float32; float64 is no more exact than itself."""

    def build(match: Match, builder: Builder) -> Ref:
        return (double if match.root.type.dtype == torch.float32 else plain)(match, builder)

    return build


def unless_folded(rules: Sequence[Rule], folds: Callable[[Node], bool]) -> tuple[Rule, ...]:
    """The rules where some convolutions have the pool that follows in their weights."""

    def waits(match: Match) -> str | None:
        return "the pool is folded into the weights" if folds(match.node("conv")) else None

    return tuple(
        replace(rule, when=all_of(rule.when, waits)) if rule.name == POOL_FIRST else rule
        for rule in rules
    )


MEAN = "mean(conv(x, W, b)) over space => linear(sums of x for each tap, W, b)"
POOL_FIRST = "avg_pool(conv(x, W, b), p) => conv(avg_pool(x, p, stride 1), W, b, stride p)"
DENSE = tuple(op for op in CONVOLUTIONS if not op.startswith("conv_transpose"))

RULES = (
    Rule(
        MEAN,
        Pat(
            SUMS,
            Pat(CONVOLUTIONS, Var("x"), Var("W"), Opt("b"), ..., name="conv"),
            ...,
            where=_over_space,
        ),
        _mean_of_input,
        Exactness.REASSOCIATES,
        when=all_of(floating, wide, _has_a_batch, _shrinks),
    ),
    Rule(
        POOL_FIRST,
        Pat(AVG_POOLS, Pat(DENSE, Var("x"), Var("W"), Opt("b"), ..., name="conv"), ...),
        _pool_input,
        Exactness.REASSOCIATES,
        when=all_of(floating, wide, _has_a_batch, _pools_first),
    ),
)
