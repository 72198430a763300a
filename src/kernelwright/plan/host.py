"""Which products the CPU makes by kernels of ours, for how many rows, and why.

In: a plan, the target, the precision. Out: the plan in which a library product that such a kernel
can take says so; the library stays for the other numbers of rows, and for other processors than the
target has measured ways for (targets/x86_64.py). Views in front of an operand are seen through.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from kernelwright.graph import Graph, hint
from kernelwright.plan.model import HostProduct, Plan, Region
from kernelwright.plan.operands import Form, form_of
from kernelwright.plan.reasons import Code, reason
from kernelwright.targets.target import HostWays, Target


def host_products(plan: Plan, target: Target, precision: str, batch: int) -> Plan:
    """The plan with these kernels beside the library's products."""
    ways = target.host
    if ways is None or precision not in ways.precisions:
        return plan
    return replace(plan, regions=tuple(_with(plan.graph, r, ways, batch) for r in plan.regions))


def _with(graph: Graph, region: Region, ways: HostWays, batch: int) -> Region:
    if region.kind != "contract" or region.contraction is None or region.direct is not None:
        return region
    node = graph[region.nodes[0]]
    types = [graph[name].type for name in region.operands]
    if {t.dtype for t in (*types, node.type)} != {torch.float32}:
        return region
    form = form_of(graph, node, lambda form: True)
    if form is None:
        return region
    fitting = ways.fitting(hint(form.columns, batch), hint(form.depth, batch), _along(form))
    if isinstance(form.rows, int):
        fitting = tuple(way for way in fitting if way.takes(form.rows))
    if not fitting:
        return region
    sizes = (form.left, form.right, form.batch, form.rows, form.columns, form.depth)
    said = ", ".join(map(str, fitting))
    return replace(
        region,
        host=HostProduct(*sizes, fitting),
        why=reason(Code.HOST, ways=said, rest=str(region.why)),
    )


def _along(form: Form) -> bool:
    return form.left.depth == 1 and form.right.depth == 1
