"""Parameters that scale or shift a product go past the sum over it, or into its weights.

    sum(y + c) = sum(y) + sum(c),    sum(y * s) = sum(y) * s    where s is one number for each sum

If s has a number for each feature of a linear, it scales the rows of the weight, which the sum goes
over anyway (sums.py): `sum_j s_j (x @ W_j + b_j)` is `x @ sum_j s_j W_j + sum_j s_j b_j`.

As in sums.py this is done only over a product that a sum may save; elsewhere parameters are free in
the kernel in which they stand. An average over windows that pads has other numbers of places at
its border than inside, so no shift goes past it. Where a parameter itself is infinite, eager's sum
is NaN if the products have both signs, and this one may be infinite.
"""

from __future__ import annotations

from collections.abc import Callable

from kernelwright.graph import Graph, Node, Ref, lined_up, product
from kernelwright.pattern import (
    Builder,
    Condition,
    Exactness,
    Match,
    Num,
    Opt,
    Param,
    Pat,
    Rule,
    Var,
    all_of,
)
from kernelwright.rules.conditions import floating, unit_alpha, wide
from kernelwright.rules.constants import SHIFTS
from kernelwright.rules.making import mul, over, view
from kernelwright.rules.reductions import reduced_axes
from kernelwright.rules.sums import (
    OF_UNKNOWN_SIZE,
    SUM_OF,
    SUMS,
    axes_of,
    over_features,
    over_product,
    saves_a_product,
    varying,
)
from kernelwright.rules.windows import AVG_POOLS, uneven


def _averaged_axes(match: Match) -> tuple[int, ...]:
    """The axes that the root goes over; those of its windows, if it is a pool."""
    if match.root.op not in AVG_POOLS:
        return axes_of(match)
    rank = len(match.root.type.shape)
    return tuple(range(rank - int(match.root.op[-2]), rank))


def _keeps_the_shape(match: Match) -> str | None:
    if match.type("inner").shape != match.type("y").shape:
        return f"c enlarges {match.node('y').name}"
    return None


def _constant_in_each_sum(match: Match) -> str | None:
    """c must be one number for all that a sum goes over."""
    c = lined_up(match.type("c").shape, len(match.type("y").shape))
    if any(c[axis] != 1 for axis in _averaged_axes(match)):
        return "c has several numbers for one sum"
    return None


def _counts_its_places(match: Match) -> str | None:
    """How often c counts must be known, and the same everywhere."""
    if match.root.op in AVG_POOLS:
        return uneven(match.root) or _constant_in_each_sum(match)
    if not isinstance(_repeats(match), int):
        return OF_UNKNOWN_SIZE
    return None


def _repeats(match: Match) -> object:
    """How often a sum counts each number of c that it sees; once in a mean."""
    if match.root.op != "sum.dim_IntList":
        return 1
    shape = match.type("y").shape
    c = lined_up(match.type("c").shape, len(shape))
    return product([shape[axis] for axis in axes_of(match) if c[axis] == 1])


def _shift_after(match: Match, builder: Builder) -> Ref:
    c = match["c"]
    if match.root.op in SUMS:
        along = lined_up(match.type("c").shape, len(match.type("y").shape))
        c = view(builder, c, along)
        c = over(builder, match.root.op, c, [a for a in axes_of(match) if along[a] != 1])
        repeats = _repeats(match)
        assert isinstance(repeats, int)
        c = c if repeats == 1 else mul(builder, c, repeats)
    return _after(match, builder, c, 1)


def _factor_after(match: Match, builder: Builder) -> Ref:
    return _after(match, builder, match["c"])


def _after(match: Match, builder: Builder, c: Ref, *more: int) -> Ref:
    """The sum of y with c, which is one number for each sum; without their axes, as the root is."""
    root, rank = match.root, len(match.type("y").shape)
    if len(root.type.shape) < rank:
        along, axes = lined_up(builder.type(c).shape, rank), axes_of(match)
        c = view(builder, c, tuple(n for axis, n in enumerate(along) if axis not in axes))
    total = builder.like(root, match["y"])
    return builder.node(match.node("inner").op, (total, c, *more), root.type)


def _for_each_feature(match: Match) -> str | None:
    rank, features = len(match.root.type.shape), match.type("W").shape[0]
    c = lined_up(match.type("c").shape, rank)
    if c != (*(1,) * (rank - 1), features):
        return f"c is not one number for each of the {features} features"
    return None


def _only_summed(match: Match) -> str | None:
    """A sum over the features must be all that reads it, past shifts that may go past it too."""
    graph, node = match.graph, match.root
    while node.name not in graph.results and len(graph.users[node.name]) == 1:
        (reader,) = (graph[name] for name in graph.users[node.name])
        if reader.op in SUMS and over_features(graph, reader):
            return None if node is match.root or _of_known_size(graph, reader) else OF_UNKNOWN_SIZE
        if reader.op not in SHIFTS or len(varying(graph, reader)) > 1:
            break
        node = reader
    return f"scaling the results costs nothing where {match.root.name} is not only summed"


def _of_known_size(graph: Graph, sum_: Node) -> bool:
    shape = graph[sum_.inputs[0]].type.shape
    return all(isinstance(shape[axis], int) for axis in reduced_axes(sum_, len(shape)))


def _into_weights(match: Match, builder: Builder) -> Ref:
    op, features = match.root.op, match.type("W").shape[0]
    c = view(builder, match["c"], (features,))

    def scaled(x: Ref, by: Ref) -> Ref:
        return builder.node(op, (x, by), builder.type(x))

    rows = scaled(match["W"], view(builder, c, (features, 1)))
    bias = match["b"] if match["b"] is None else scaled(match["b"], c)
    return builder.like(match.node("linear"), match["x"], rows, bias)


def _with(op: str, value: Pat | Var, *more: Num) -> Pat:
    """The value with a parameter; in any order, where that is the same."""
    return Pat(op, value, Param("c"), *more, name="inner", commutes=op in ("add", "mul"))


def _past(
    law: str, op: str, build: Callable[[Match, Builder], Ref], safe: Condition, *alphas: Num
) -> Rule:
    plain = unit_alpha(*(alpha.name for alpha in alphas))
    when = all_of(floating, wide, plain, over_product, _keeps_the_shape, safe)
    pattern = Pat(SUM_OF, _with(op, Var("y"), *alphas), ...)
    return Rule(law, pattern, build, Exactness.REASSOCIATES, when)


def _shift(law: str, op: str) -> Rule:
    return _past(law, op, _shift_after, _counts_its_places, Num("alpha"))


def _factor(law: str, op: str) -> Rule:
    return _past(law, op, _factor_after, _constant_in_each_sum)


def _weights(law: str, op: str) -> Rule:
    return Rule(
        law,
        _with(op, Pat("linear", Var("x"), Var("W"), Opt("b"), name="linear")),
        _into_weights,
        Exactness.REASSOCIATES,
        when=all_of(floating, wide, _for_each_feature, saves_a_product, _only_summed),
    )


RULES = (
    _weights("linear(x, W, b) * s => linear(x, s W, s b) if it is summed", "mul"),
    _weights("linear(x, W, b) / s => linear(x, W / s, b / s) if it is summed", "div"),
    _shift("sum(x + c) => sum(x) + sum(c)", "add"),
    _shift("sum(x - c) => sum(x) - sum(c)", "sub"),
    _factor("sum(x * s) => sum(x) * s", "mul"),
    _factor("sum(x / s) => sum(x) / s", "div"),
)
