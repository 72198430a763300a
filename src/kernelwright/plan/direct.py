"""On the CPU: convolutions of so little work that the library spends more on getting ready.

    small_convolutions   the primitives -> for each such convolution the samples up to which a
                         kernel of ours (kernels/direct.hpp) is faster
    with_direct          the Plan with that kernel beside the library's call

What the library needs before it convolves (finding a kernel, bringing the weight into its order)
takes tens of microseconds, whatever the size; then it runs at the rate of the machine, and a large
one stays with it. The kernel reads operands with their channels first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch

from kernelwright.graph import Graph, Node
from kernelwright.plan.convolutions import ConvForm, conv_form
from kernelwright.plan.dense import is_dense
from kernelwright.plan.model import Direct, Plan, Region
from kernelwright.plan.policy import Policy
from kernelwright.plan.reasons import Code, reason
from kernelwright.targets.target import SmallConvolutions, Target

# What kernels/direct.hpp has room for.
MOST_TAPS, MOST_STEPS = 256, 16
FLOAT = 4
# Numbers that are compared.
SAMPLES = tuple(sorted({base << k for base in (2, 3) for k in range(16)} | {1}))
# By ATen's rule a single sample without groups and of a window up to so wide is not prepared for.
UNPREPARED = 3


def small_convolutions(graph: Graph, target: Target, batch: int, policy: Policy) -> dict[str, int]:
    """By name; only where that many samples are at least those of the example."""
    if target.small is None or policy.channels_last_always:
        return {}
    found: dict[str, int] = {}
    for node in graph:
        form = _form(graph, node)
        if form is None:
            continue
        most = SAMPLES[-1] if policy.generate_always else _most(form, target.small)
        if most >= (form.batch if isinstance(form.batch, int) else batch):
            found[node.name] = most
    return found


def _form(graph: Graph, node: Node) -> ConvForm | None:
    """A convolution of float32 in up to two dimensions, if that is what a node is."""
    form = conv_form(graph, node) if node.op == "contract" else None
    if form is None or form.transposed or node.type.dtype != torch.float32:
        return None
    flat = form.in_size[0] == form.out_size[0] == form.kernel[0] == 1 and form.padding[0] == 0
    fits = form.taps <= MOST_TAPS and max(form.stride) <= MOST_STEPS
    return form if flat and fits and form.inputs(1) and form.outputs(1) and form.taps else None


def _most(form: ConvForm, small: SmallConvolutions) -> int:
    """The samples up to which ours is faster."""
    most = 0
    for samples in SAMPLES:
        flops, filters = form.flops(samples), form.cout // form.groups
        prepared = samples > 1 or form.groups > 1 or max(form.kernel) > UNPREPARED
        ours = small.time(flops * _computed(form), FLOAT * form.inputs(samples), filters)
        if ours < small.library_time(flops, prepared):
            most = samples
    return most


def _computed(form: ConvForm) -> float:
    """What is computed for every place of the result: padded rows are walked from end to end."""
    axes = zip(form.out_size, form.kernel, form.dilation, form.stride, strict=True)
    extents = (out + (taps - 1) * spread // step for out, taps, spread, step in axes)
    return math.prod(extents) / form.places


def with_direct(plan: Plan, small: Mapping[str, int]) -> Plan:
    """The plan with the kernel where its operands lie as it reads them."""
    return replace(plan, regions=tuple(_with(plan.graph, r, small) for r in plan.regions))


def _with(graph: Graph, region: Region, small: Mapping[str, int]) -> Region:
    if region.kind != "contract" or region.nodes[0] not in small or len(region.outputs) != 1:
        return region
    form = _form(graph, graph[region.nodes[0]])
    if form is None or not all(is_dense(graph, name) for name in region.operands):
        return region
    most = small[region.nodes[0]]
    why = reason(Code.DIRECT, most=most, rest=str(region.why))
    return replace(region, direct=Direct(form, most), why=why)
