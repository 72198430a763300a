"""A bias that no kernel of its own is worth goes back into the library's call.

In: a Plan whose contractions are parted from their biases. Out: one in which a kernel that would
only add a contraction's bias is part of the call, also on the library's way beside a generated
product.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from kernelwright.graph import BIAS, Call, Graph, Node, Ref, map_refs
from kernelwright.plan.model import Plan, Region
from kernelwright.plan.reasons import Code, reason


def return_biases(plan: Plan) -> Plan:
    regions = tuple(r.with_library(partial(_returned, plan.graph)) for r in plan.regions)
    return replace(plan, regions=_returned(plan.graph, regions))


def _returned(graph: Graph, steps: tuple[Region, ...]) -> tuple[Region, ...]:
    by_output = {b.name: s for s in steps for b in s.outputs}
    result = list(steps)
    for step in steps:
        maps = [n for n in step.nodes if graph[n].op != "view"]
        if step.kind != "rowwise" or len(maps) != 1 or len(graph[maps[0]].inputs) != 2:
            continue
        add = graph[maps[0]]
        product = by_output.get(add.inputs[0])
        if product is None or product.contraction is None or product.contraction.biased is None:
            continue
        is_bias = graph[add.inputs[0]].sources == add.sources  # one operator of the user's program
        if product.kind != "contract" or not is_bias or graph.users[add.inputs[0]] != [add.name]:
            continue
        result[result.index(step)] = _with_bias(
            graph, product, product.contraction.biased, step, add
        )
        result.remove(product)
    return tuple(result)


def _with_bias(graph: Graph, product: Region, call: Call, step: Region, add: Node) -> Region:
    bias = add.inputs[1]
    reshaped = graph[bias].op == "view" and graph[bias].sources == add.sources
    base = graph[bias].inputs[0] if reshaped else bias
    args = map_refs(call.args, lambda ref: Ref(base) if ref is BIAS else ref)
    return replace(
        product,
        name=add.name,
        nodes=(*product.nodes, *step.nodes),
        why=reason(Code.BIAS_KEPT),
        call=replace(call, args=args),
        bias=base,
        outputs=step.outputs,
        reads=(*product.reads, base),
    )
