"""On the CPU, an operator that nothing fuses with stays with ATen where ATen is faster.

In: a plan, and the graph that it was made from with its ATen calls. Out: a plan in which a kernel
that carries out one of these operators, and nothing else, is that operator's own call. ATen's
vectorised loops for them are better than what a general template makes of one operator. Measured on
one x86-64 core, eager's time over ours at 4096 x 512: gelu 0.6, tanh 0.7, exp 0.8, sigmoid 0.9,
relu 0.9, sums over rows 0.9 and over columns 0.6 to 0.8; softmax 1.1 over 64 elements, 0.95 over
512, 0.85 over 4096; layer_norm 1.1 over 512 and 0.83 over 4096. With a second operator in the
kernel the memory that is saved outweighs that.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from kernelwright.graph import Call, Graph, Node, product
from kernelwright.plan.model import Plan, Region
from kernelwright.plan.policy import Policy
from kernelwright.plan.reasons import Code, reason

ALWAYS = {
    *("relu", "gelu", "tanh", "exp", "sigmoid"),
    *("sum", "sum.dim_IntList", "mean", "mean.dim", "amax", "amin"),
}
LONG_SOFTMAX, LONG_NORM = 256, 2048  # elements of a row from which on ATen is faster


def leave_alone(plan: Plan, called: Graph, policy: Policy) -> Plan:
    """Give lone operators back; `called` is the graph before it was expanded."""
    if policy.generate_always:
        return plan
    steps = Counter(source for region in plan.regions for source in _operators(plan, region))
    return replace(
        plan, regions=tuple(_alone(plan, called, region, steps) for region in plan.regions)
    )


def _is_faster(node: Node) -> bool:
    """Whether ATen has the better loop for this operator."""
    if node.op == "softmax":
        length = node.type.shape[node.args[1]]
        return isinstance(length, int) and length >= LONG_SOFTMAX
    if node.op == "layer_norm":
        length = product(tuple(node.args[1]))
        return isinstance(length, int) and length >= LONG_NORM
    return node.op in ALWAYS


def _operators(plan: Plan, region: Region) -> set[str]:
    """The operators that a region carries out, views not counted."""
    nodes = [plan.graph[n] for n in region.nodes]
    return {s for node in nodes if node.op != "view" for s in node.sources}


def _is_turned(graph: Graph, called: Graph, name: str) -> bool:
    """Whether a value lies in channels_last, as ATen's result would, or is gone under its name."""
    node = graph.by_name.get(name)
    return node is None or (node.op == "view" and node.inputs[0] not in called.by_name)


def _alone(plan: Plan, called: Graph, region: Region, steps: Counter[str]) -> Region:
    operators = _operators(plan, region)
    if region.program is None or len(operators) != 1:
        return region
    (name,) = operators
    node = called.by_name.get(name)
    if node is None or not _is_faster(node) or not isinstance(node.payload, Call):
        return region
    if any(_is_turned(plan.graph, called, i) for i in node.inputs):
        return region
    whole = [(b.name, b.shape) for b in region.outputs] == [(name, node.type.shape)]
    if not whole or steps[name] != 1:  # a part of it, such as the first of two steps of a sum
        return region
    return replace(
        region,
        kind="opaque",
        why=reason(Code.ALONE, op=node.origin.op),
        program=None,
        call=node.payload,
        reads=tuple(dict.fromkeys(node.inputs)),
    )
