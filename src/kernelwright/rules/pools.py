"""Pools: increasing functions go past the maximum, and two pools in a row become one.

max(f(x)) is f(max(x)) for an f that never decreases, and f then runs on the pooled tensor, 4 or 8
times smaller. orders.py knows these functions.

A function moves only if all that stands between the pool and a product, an input or another pool
can move. Elsewhere it is free inside the fused kernel before the pool and would need one after it.

Two pools compose where the first one's windows neither overlap nor leave gaps; the places that the
first leaves over at the end are left over by the composition too. Pads of -inf or 0 in between
would stand for places that exist, so pads are refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernelwright.graph import SOURCES, Graph, Node, Ref, lined_up, product
from kernelwright.pattern import Builder, Exactness, Match, Pat, Rule, Var, all_of
from kernelwright.rules.conditions import floating, wide
from kernelwright.rules.constants import SHIFTS
from kernelwright.rules.orders import ORDERLY, SMOOTH, unordered
from kernelwright.rules.reductions import reduced_axes
from kernelwright.rules.sums import PRODUCTS
from kernelwright.rules.windows import AVG_POOLS, DILATION, MAX_POOLS, pool_window, uneven


def _unmoved(graph: Graph, node: Node) -> str | None:
    """Why the function does not go past a pool, or None."""
    shift = node.args[1] if node.op in SHIFTS else None
    if not isinstance(shift, Ref):
        return unordered(node)
    shape, out = graph[shift.name].type.shape, node.type.shape
    same_type = graph[shift.name].type.dtype == node.type.dtype
    if not same_type or graph[node.inputs[0]].type != node.type:
        return f"{shift} enlarges or converts what it is added to"
    space = lined_up(shape, len(out))[2:]
    return None if all(n == 1 for n in space) else f"{shift} varies inside of a window"


def _moves(match: Match) -> str | None:
    return _unmoved(match.graph, match.node("f"))


def _whole_chain_moves(match: Match) -> str | None:
    node = match.node("x")
    while node.op in (*ORDERLY, *SMOOTH):
        why = _unmoved(match.graph, node)
        if why or len(match.graph.users[node.name]) > 1:
            return why or f"{node.name} has other readers"
        node = match.graph[node.inputs[0]]
    if node.op in (*PRODUCTS, *MAX_POOLS, *SOURCES):
        return None
    return f"it is free inside the fused kernel of {node.name}"


def _every_window_has_a_place(match: Match) -> str | None:
    root = match.root
    if any(d != 1 for d in root.args[DILATION]):
        return "a dilated window may lie in the padding altogether"
    rank = len(root.args[1])
    before, after = (t.shape[-rank:] for t in (match.type("x"), root.type))
    if len(root.type.shape) != rank + 2:
        return "the pool has no batch dimension"
    if not all(isinstance(n, int) for n in (*before, *after)):
        return "the size of the space is known only at a call"
    if 2 * int(product(after)) > int(product(before)):
        return "the pool leaves as many places as there were"
    return None


def _pool_first(match: Match, builder: Builder) -> Ref:
    f = match.node("f")
    pooled = builder.like(match.root, match["x"], own=True)
    return builder.like(f, pooled, shape=match.root.type.shape, own=True)


def _monotone(law: str, ops: Sequence[str], exactness: Exactness) -> Rule:
    pattern = Pat(MAX_POOLS, Pat(ops, Var("x"), ..., name="f"), ...)
    when = all_of(floating, _moves, _every_window_has_a_place, _whole_chain_moves)
    return Rule(law, pattern, _pool_first, exactness, when)


def _compose(match: Match) -> str | None:
    inner, outer = match.node("inner"), match.root
    why = uneven(inner) or uneven(outer)
    if why:
        return why
    kernel, stride = pool_window(inner)
    return None if kernel == stride else f"the windows of {inner.name} overlap or leave gaps"


def _one_pool(match: Match, builder: Builder) -> Ref:
    first, _ = pool_window(match.node("inner"))
    kernel, stride = pool_window(match.root)
    sizes = (tuple(a * b for a, b in zip(first, n, strict=True)) for n in (kernel, stride))
    return builder.like(match.root, match["x"], *sizes)


def _two_pools(law: str, ops: Sequence[str], exactness: Exactness) -> Rule:
    pattern = Pat(ops, Pat(ops, Var("x"), ..., name="inner"), ...)
    return Rule(law, pattern, _one_pool, exactness, all_of(floating, _same_rank, _compose))


def _same_rank(match: Match) -> str | None:
    inner, outer = match.node("inner").op, match.root.op
    return None if inner == outer else f"{inner} and {outer} pool over different axes"


def _covered(match: Match) -> str | None:
    pool = match.node("inner")
    why = uneven(pool)
    if why:
        return why
    kernel, stride = pool_window(pool)
    size = match.type("x").shape[-len(kernel) :]
    if not all(isinstance(n, int) for n in size):
        return "the size of the space is known only at a call"
    if kernel != stride or any(int(n) % k for n, k in zip(size, kernel, strict=True)):
        return f"the windows of {pool.name} do not cover each place once"
    rank = len(pool.type.shape)
    if not {*range(rank - len(kernel), rank)} <= {*reduced_axes(match.root, rank)}:
        return f"the mean leaves axes that {pool.name} goes over"
    return None


RULES = (
    _two_pools("max_pool(max_pool(x, a), b) => max_pool(x, a * b)", MAX_POOLS, Exactness.EXACT),
    _two_pools(
        "avg_pool(avg_pool(x, a), b) => avg_pool(x, a * b)", AVG_POOLS, Exactness.REASSOCIATES
    ),
    Rule(
        "mean(avg_pool(x)) => mean(x)",
        Pat("mean.dim", Pat(AVG_POOLS, Var("x"), ..., name="inner"), ...),
        lambda match, builder: builder.like(match.root, match["x"]),
        Exactness.REASSOCIATES,
        when=all_of(floating, wide, _covered),
    ),
    _monotone(
        "max_pool(f(x)) => f(max_pool(x)) if f clips, shifts or scales by a positive number",
        ORDERLY,
        Exactness.EXACT,
    ),
    _monotone(
        "max_pool(f(x)) => f(max_pool(x)) if f is increasing", SMOOTH, Exactness.REASSOCIATES
    ),
)
