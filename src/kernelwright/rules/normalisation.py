"""A shift before a normalisation cancels: the mean takes it up, and the mean is subtracted.

The law holds for every shift that is constant along the normalised axes. It is applied to numbers
only. A parameter could hold a NaN or an infinity, which eager shows and the shorter form would
hide, and inside a fused kernel its addition costs nothing; so parameters are refused, with that
reason.
Norms that keep running statistics are refused as well: the running mean must see the shift.

The bias of a product before a BatchNorm that trains is another matter. The statistics of equal
numbers must be exact, or the norm divides what rounding leaves of them by sqrt(eps); and where an
input is zero, products without their bias are. So the bias goes where it counts: as b - b into the
norm's own bias and the running variance, for a NaN or an infinity of it, and into the running mean,
which becomes (1 - m) (r + b m / (1 - m)) + m mean(x W).
"""

from __future__ import annotations

from kernelwright.graph import Node, Ref, lined_up
from kernelwright.pattern import (
    Builder,
    Exactness,
    Match,
    Num,
    OneOf,
    Param,
    Pat,
    Rule,
    Var,
    all_of,
)
from kernelwright.rules.biases import CONVOLUTIONS
from kernelwright.rules.conditions import floating, in_range, is_value, wide
from kernelwright.rules.constants import SHIFTS, shift_of
from kernelwright.rules.making import add, mul, sub

BATCH_NORMS = (
    "batch_norm", "_native_batch_norm_legit_functional", "_native_batch_norm_legit_no_training",
)  # fmt: skip
TRAINED = "_native_batch_norm_legit_functional"
RESULT, RUNNING_MEAN, RUNNING_VAR = 0, 3, 4
NORMS = ("group_norm", "layer_norm", "instance_norm", *BATCH_NORMS)


def normalised_axes(node: Node) -> tuple[int, ...]:
    """The axes of a norm's operand along which its statistics are taken, within a group or not."""
    rank = len(node.type.shape)
    if node.op == "layer_norm":
        return tuple(range(rank - len(node.args[1]), rank))
    one_channel_a_group = node.op != "group_norm" or node.args[1] == node.type.shape[1]
    return tuple(range(2 if one_channel_a_group else 1, rank))


def _own_statistics(match: Match) -> str | None:
    norm = match.root
    if norm.op in BATCH_NORMS:
        return f"{norm.op} works with running statistics, which must see the shift"
    if norm.op == "instance_norm" and norm.args[3] is not None:
        return "instance_norm works with running statistics, which must see the shift"
    return None


def _is_finite_number(match: Match) -> str | None:
    if is_value(match, "c"):
        return _why_not_a_parameter(match)
    shift = shift_of(match.node("sum").op, match.number("c"), match.number("alpha"))
    if not in_range(shift, match.root.type.dtype):
        return f"the shift {shift:g} is not in the range where x + c is finite for every finite x"
    return None


def _why_not_a_parameter(match: Match) -> str:
    shape, rank = match.type("c").shape, len(match.root.type.shape)
    along = lined_up(shape, rank)
    varies = [axis for axis in normalised_axes(match.root) if along[axis] != 1]
    if varies:
        return (
            f"{match['c'].name} varies along the normalised axis {varies[0]}, so it does not cancel"
        )
    return (
        f"a NaN or infinity stored in {match['c'].name} would vanish, and the addition is free "
        "inside the fused kernel"
    )


def _build(match: Match, builder: Builder) -> Ref:
    return builder.like(match.root, match["x"])


def _keeps_its_mean(match: Match) -> str | None:
    """The running mean must be that of some batches, and the batch's own mean nobody's."""
    graph, norm = match.graph, match.root
    training, momentum = norm.args[5:7]
    if not training or not 0 < momentum < 1:
        return f"{norm.name} does not average over batches"
    taken = {graph[user].args[1] for user in graph.users[norm.name] if graph[user].op == "getitem"}
    if not taken <= {RESULT, RUNNING_MEAN, RUNNING_VAR}:
        return f"the statistics of {norm.name} are results of their own"
    return None


def _bias_aside(match: Match, builder: Builder) -> Ref:
    norm, conv, b = match.root, match.node("product"), match["b"]
    _, weight, bias, running_mean, running_var, *_ = norm.args
    momentum = norm.args[6]
    product = builder.like(conv, match["x"], match["W"], None, own=True)
    nothing = sub(builder, b, b)
    bias = nothing if bias is None else add(builder, bias, nothing)
    running_mean = add(builder, running_mean, mul(builder, b, momentum / (1 - momentum)))
    running_var = add(builder, running_var, nothing)
    return builder.like(norm, product, weight, bias, running_mean, running_var)


RULES = (
    Rule(
        "batch_norm(x W + b) => batch_norm(x W) in train mode, with b in its running mean",
        Pat(
            TRAINED,
            Pat(("linear", *CONVOLUTIONS), Var("x"), Var("W"), Param("b"), ..., name="product"),
            ...,
        ),
        _bias_aside,
        Exactness.REASSOCIATES,
        when=all_of(floating, wide, _keeps_its_mean),
    ),
    Rule(
        "norm(x + c) => norm(x)",
        Pat(
            NORMS,
            Pat(SHIFTS, Var("x"), OneOf((Num("c"), Param("c"))), Num("alpha"), name="sum"),
            ...,
        ),
        _build,
        Exactness.REASSOCIATES,
        when=all_of(floating, _own_statistics, _is_finite_number),
    ),
)
