"""A number times an operand of a product moves behind the product, where a kernel takes it along.

Attention scales its queries and multiplies them by its keys. Before the product that is a kernel of
its own, since an operand must be in memory; behind it, the kernel of the softmax scales what it
reads anyway. So the law asks for such a reader.

Only in float32: in half precision the scaling may be what keeps the product from overflowing. For
the same reason the number must be moderate, so that a product overflows only if eager's is within
three digits of that.
"""

from __future__ import annotations

from kernelwright.graph import Graph, Ref
from kernelwright.pattern import Builder, Exactness, Match, Num, OneOf, Pat, Rule, Var, all_of
from kernelwright.rules.conditions import floating, single_precision

PRODUCTS = ("matmul", "bmm", "mm")
TURNED = ("permute", "transpose.int")
VIEWS = ("view", "reshape", "unsqueeze", "squeeze", "transpose", "permute", "expand")
# What a kernel of ours does with a value that it has just read.
READERS = {
    *("add", "sub", "mul", "div", "neg", "where", "masked_fill", "clamp", "minimum", "maximum"),
    *("exp", "tanh", "sigmoid", "relu", "softplus", "softmax", "log_softmax", "logsumexp"),
}
MODERATE = 2.0**10


def _moderate(match: Match) -> str | None:
    c = match.number("c")
    if not 1 / MODERATE <= abs(c) <= MODERATE:
        return f"the factor {c:g} is so far from 1 that the product may overflow without it"
    return None


def _read_by_a_kernel(match: Match) -> str | None:
    name = match.root.name
    for reader in _readers(match.graph, name):
        if reader.partition(".")[0] not in READERS:
            return f"{reader} reads {name}, so scaling it would be a kernel of its own"
    return None


def _readers(graph: Graph, name: str) -> list[str]:
    """The operators that read a value, through views; the model's caller is one."""
    found = ["the caller"] if name in graph.results else []
    for user in (graph[u] for u in graph.users[name]):
        short = user.op.partition(".")[0]
        found += _readers(graph, user.name) if short in VIEWS else [user.op]
    return found


def _behind(law: str, scaling: str, left: bool) -> Rule:
    scaled = Pat(scaling, Var("x" if left else "y"), Num("c"), name="scaled")
    operand = OneOf((scaled, Pat(TURNED, scaled, ..., name="turned")))
    pattern = Pat(PRODUCTS, operand, Var("y")) if left else Pat(PRODUCTS, Var("x"), operand)

    def build(match: Match, builder: Builder) -> Ref:
        operands = {name: match[name] for name in ("x", "y")}
        if "turned" in match.bound:
            side = "x" if left else "y"
            operands[side] = builder.like(match.node("turned"), operands[side])
        product = builder.like(match.root, *operands.values())
        return builder.like(match.node("scaled"), product, shape=match.root.type.shape)

    when = all_of(floating, single_precision, _moderate, _read_by_a_kernel)
    return Rule(law, pattern, build, Exactness.REASSOCIATES, when)


RULES = (
    _behind("(x * c) @ y => (x @ y) * c", "mul", left=True),
    _behind("(x / c) @ y => (x @ y) / c", "div", left=True),
    _behind("x @ (y * c) => (x @ y) * c", "mul", left=False),
    _behind("x @ (y / c) => (x @ y) / c", "div", left=False),
)
