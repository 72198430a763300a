"""Reductions over axes of size one: the value itself, in another shape where the axes are dropped.

Sum, mean, prod, max and min of one number are that number, NaN and infinities included, and so is
log(exp(x)) as torch computes it: max + log(exp(x - max)), with an infinite max taken as 0.

Not here: softmax over an axis of size one. It is exp(x - x), so 1 for a finite x, but NaN for NaN
and for infinities, and a constant would hide them. Nor var and std, which are NaN or 0 as asked.
"""

from __future__ import annotations

from kernelwright.graph import Graph, Node, Ref
from kernelwright.pattern import Builder, Exactness, Match, Pat, Rule, Var
from kernelwright.rules.conditions import floating

OVER_AXES = ("sum.dim_IntList", "mean.dim", "prod.dim_int", "amax", "amin", "logsumexp")
WITH_INDICES = ("max.dim", "min.dim")
OVER_ALL = ("sum", "mean", "prod", "max", "min")


def reduced_axes(node: Node, rank: int) -> tuple[int, ...]:
    """The axes that a reduction goes over, counted from the front; none named means all."""
    named = () if node.op in OVER_ALL else node.args[1]
    axes = (named,) if isinstance(named, int) else (named or range(rank))
    return tuple(axis % rank for axis in axes) if rank else ()


def _over_size_one(graph: Graph, node: Node) -> bool:
    shape = graph[node.inputs[0]].type.shape
    return all(shape[axis] == 1 for axis in reduced_axes(node, len(shape)))


def _build(match: Match, builder: Builder) -> Ref:
    shape, x = match.root.type.shape, match["x"]
    assert isinstance(x, Ref)
    if match.type("x").shape == shape:
        return x
    return builder.node("view", (x, shape), match.root.type)


def _reduction(ops: tuple[str, ...]) -> Pat:
    return Pat(ops, Var("x"), ..., where=_over_size_one)


def _identity(law: str, pattern: Pat) -> Rule:
    return Rule(law, pattern, _build, Exactness.EXACT, when=floating)


RULES = (
    _identity("reduce(x) over axes of size 1 => x", _reduction(OVER_AXES)),
    _identity("max(x) over an axis of size 1 => x", Pat("getitem", _reduction(WITH_INDICES), 0)),
    _identity("reduce(x) of one element => x", _reduction(OVER_ALL)),
)
