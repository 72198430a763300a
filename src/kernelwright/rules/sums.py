"""Sums over the outputs of a product: the weights are summed, and the product is never made.

`sum_j (x @ W_j + b_j)` is `x @ sum_j W_j + sum_j b_j`: W is read once instead of multiplied. It is
summed in the call, so parameters may change at any time. A product with one vector is a map and a
reduction here, so that it and all that follows are one fused kernel.

An infinite x needs care. Eager adds x * W_jk over j: an infinity if all weights of a column have
one sign, else NaN, while the sum of the weights has a sign in any case. The extremes of the column
decide it in the same way: x * min_j W_jk + x * max_j W_jk. They come from the pass that sums W.

Numbers, shifts by numbers, views that only move axes and eval-mode batch norms that stand between a
product and its sum go past the sum, where there are fewer elements. This is done only over a
product: anywhere else they are free inside the fused kernel in which they stand. For that reason
eval-mode BatchNorm is not folded into weights: a scale for each channel in an epilogue is free, and
folding would cost a launch over the weights in every call.

Not here:
- averages over windows of features: the extremes of a window would have to be multiplied as well,
  three products of a window's size, and without them an infinity stands where eager has NaN;
- sums over the output channels of a convolution, for the same reason.
"""

from __future__ import annotations

from kernelwright.graph import Graph, Node, Ref, Shape, product
from kernelwright.pattern import Builder, Exactness, Match, Num, Opt, Pat, Rule, Var, all_of
from kernelwright.rules.biases import CONVOLUTIONS
from kernelwright.rules.conditions import floating, in_range, wide
from kernelwright.rules.constants import SHIFTS, shift_of
from kernelwright.rules.making import add, mul, over, view, where_infinite
from kernelwright.rules.reductions import reduced_axes
from kernelwright.rules.windows import AVG_POOLS, pool_window, uneven

PRODUCTS = ("linear", *CONVOLUTIONS)
SUMS = ("sum.dim_IntList", "mean.dim")
SUM_OF = (*SUMS, *AVG_POOLS)
GLOBAL_POOLS = (*AVG_POOLS, *(f"adaptive_avg_pool{rank}d" for rank in (1, 2, 3)))
EVAL_NORM = "_native_batch_norm_legit_no_training"
MOVES = ("unsqueeze", "squeeze.dim", "transpose", "permute", "t")
FACTORS = ("mul", "div")
STATE = ("parameter", "buffer")
OF_UNKNOWN_SIZE = "the sum goes over the batch, whose size is known only at a call"
PASSABLE = (*FACTORS, *SHIFTS, *MOVES, EVAL_NORM, "getitem")


def varying(graph: Graph, node: Node) -> list[str]:
    """Its operands that are no parameters."""
    return [name for name in node.inputs if graph[name].op not in STATE]


def over_product(match: Match) -> str | None:
    """Below y there must be a product, with nothing else between them that could not go past."""
    graph, node = match.graph, match.node("y")
    while node.op in PASSABLE and len(operands := varying(graph, node)) == 1:
        node = graph[operands[0]]
    if node.op in PRODUCTS:
        return None
    return f"it is free inside the fused kernel, and {node.name} is no product that could be saved"


def axes_of(match: Match) -> tuple[int, ...]:
    """The axes that the root goes over."""
    rank = len(match.graph[match.root.inputs[0]].type.shape)
    return reduced_axes(match.root, rank)


def over_features(graph: Graph, node: Node) -> bool:
    rank = len(graph[node.inputs[0]].type.shape)
    return rank - 1 in reduced_axes(node, rank)


def saves_a_product(match: Match) -> str | None:
    x, weight = match.type("x").shape, match.type("W").shape
    if weight[0] == 1:
        return "the product has one feature only"
    if product(x[:-1]) == 1:
        return "for a single row, reading the weight is all that the product costs"
    return None


def _sum_weights(match: Match, builder: Builder) -> Ref:
    """x @ w + b with the sums (means) over features; infinities by a column's extremes."""
    x, weight, op = match["x"], match["W"], match.root.op
    rank = len(match.type("x").shape)
    depth = (match.type("W").shape[1],)
    w, low, high = (
        view(builder, over(builder, o, weight, (0,)), depth) for o in (op, "amin", "amax")
    )
    infinite = add(builder, mul(builder, x, low), mul(builder, x, high))
    terms = where_infinite(builder, x, infinite, mul(builder, x, w))
    total = over(builder, "sum.dim_IntList", terms, (rank - 1,))
    if match["b"] is not None:
        total = add(builder, total, over(builder, op, match["b"], (0,)))
    others = tuple(axis for axis in axes_of(match) if axis != rank - 1)
    return _in_shape(match, builder, over(builder, op, total, others))


def _in_shape(match: Match, builder: Builder, value: Ref) -> Ref:
    return view(builder, value, match.root.type.shape)


def _kept(match: Match) -> Shape:
    """The root's shape as if it kept its axes."""
    shape, axes = match.graph[match.root.inputs[0]].type.shape, axes_of(match)
    return tuple(1 if axis in axes else size for axis, size in enumerate(shape))


def _factor_is_safe(match: Match) -> str | None:
    factor = match.number("a")
    if factor == 0 or not in_range(factor, match.root.type.dtype):
        return f"the factor {factor:g} is not in the range where it may go past a sum"
    return None


def _scale_after(match: Match, builder: Builder) -> Ref:
    total = builder.like(match.root, match["y"])
    return builder.node(match.node("scale").op, (total, match["a"]), match.root.type)


def _shift_is_safe(match: Match) -> str | None:
    shift = shift_of(match.node("shift").op, match.number("c"), match.number("alpha"))
    if not in_range(shift, match.root.type.dtype):
        return f"the shift {shift:g} is not in the range where it may go past a sum"
    if match.root.op in AVG_POOLS and (why := uneven(match.root)):
        return why
    if not isinstance(_count(match), int):
        return OF_UNKNOWN_SIZE
    return None


def _count(match: Match) -> object:
    """How many elements each sum has; one for averages."""
    if match.root.op != "sum.dim_IntList":
        return 1
    shape = match.graph[match.root.inputs[0]].type.shape
    return product([shape[axis] for axis in axes_of(match)])


def _shift_after(match: Match, builder: Builder) -> Ref:
    shift = shift_of(match.node("shift").op, match.number("c"), match.number("alpha"))
    count = _count(match)
    assert isinstance(count, int)
    return add(builder, builder.like(match.root, match["y"]), shift * count)


def _sources_of_axes(move: Node, rank: int) -> tuple[int | None, ...]:
    """For each axis of a view that only moves axes, the axis of its operand; None for a new one."""
    axes: list[int | None] = list(range(rank))
    match move.op:
        case "unsqueeze":
            axes.insert(move.args[1] % (rank + 1), None)
        case "squeeze.dim":
            if len(move.type.shape) < rank:
                del axes[move.args[1] % rank]
        case "permute":
            axes = [axis % rank for axis in move.args[1]]
        case _:
            a, b = (axis % rank for axis in move.args[1:]) if move.op == "transpose" else (0, -1)
            axes[a], axes[b] = axes[b], axes[a]
    return tuple(axes)


def _before_move(match: Match) -> tuple[int, ...]:
    """The axes of y that the sum behind the view goes over."""
    sources = _sources_of_axes(match.node("move"), len(match.type("y").shape))
    found = (sources[axis] for axis in axes_of(match))
    return tuple(sorted(axis for axis in found if axis is not None))


def _sums_something(match: Match) -> str | None:
    return None if _before_move(match) else "the sum goes over new axes of size one only"


def _move_after(match: Match, builder: Builder) -> Ref:
    total = over(builder, match.root.op, match["y"], _before_move(match))
    moved = builder.like(match.node("move"), total, shape=_kept(match))
    return _in_shape(match, builder, moved)


def _over_space(graph: Graph, node: Node) -> bool:
    rank = len(graph[node.inputs[0]].type.shape)
    return rank > 2 and all(axis > 1 for axis in reduced_axes(node, rank))


def _norm_after(match: Match, builder: Builder) -> Ref:
    mean = over(builder, match.root.op, match["y"], axes_of(match))
    norm = builder.like(match.node("norm"), mean, shape=_kept(match))
    return _in_shape(match, builder, builder.first_of(norm))


def _covers_space(match: Match) -> str | None:
    root = match.root
    size = match.type("y").shape[-int(root.op[-2]) :]
    if root.op.startswith("adaptive"):
        return None if all(n == 1 for n in root.args[1]) else "the pool leaves more than one place"
    if pool_window(root)[0] != size:
        return "the window is not the whole of the space"
    return uneven(root)


def _mean_instead(match: Match, builder: Builder) -> Ref:
    rank, space = len(match.root.type.shape), int(match.root.op[-2])
    axes = tuple(range(rank - space, rank))
    return over(builder, "mean.dim", match["y"], axes)


RULES = (
    Rule(
        "pool(x) over all of the space => mean(x)",
        Pat(GLOBAL_POOLS, Var("y"), ...),
        _mean_instead,
        Exactness.REASSOCIATES,
        when=all_of(floating, _covers_space, over_product),
    ),
    Rule(
        "sum(x * a) => sum(x) * a",
        Pat(SUM_OF, Pat(FACTORS, Var("y"), Num("a"), name="scale"), ...),
        _scale_after,
        Exactness.REASSOCIATES,
        when=all_of(floating, wide, over_product, _factor_is_safe),
    ),
    Rule(
        "sum(x + c) => sum(x) + n * c",
        Pat(SUM_OF, Pat(SHIFTS, Var("y"), Num("c"), Num("alpha"), name="shift"), ...),
        _shift_after,
        Exactness.REASSOCIATES,
        when=all_of(floating, wide, over_product, _shift_is_safe),
    ),
    Rule(
        "sum(move(x)) => move(sum(x))",
        Pat(SUMS, Pat(MOVES, Var("y"), ..., name="move"), ...),
        _move_after,
        Exactness.REASSOCIATES,
        when=all_of(floating, wide, over_product, _sums_something),
    ),
    Rule(
        "mean(batch_norm(x)) => batch_norm(mean(x)) in eval mode",
        Pat(
            "mean.dim",
            Pat("getitem", Pat(EVAL_NORM, Var("y"), ..., name="norm"), 0),
            ...,
            where=_over_space,
        ),
        _norm_after,
        Exactness.REASSOCIATES,
        when=all_of(floating, wide, over_product),
    ),
    Rule(
        "sum_j linear(x, W, b)_j => x @ sum_j W_j + sum_j b_j",
        Pat(SUMS, Pat("linear", Var("x"), Var("W"), Opt("b")), ..., where=over_features),
        _sum_weights,
        Exactness.REASSOCIATES,
        when=all_of(floating, wide, saves_a_product),
    ),
)
