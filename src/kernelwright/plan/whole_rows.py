"""Rows along the width of a convolution: on tiles that hold them whole, or in parts.

In: a plan that leaves parts of such rows to other tiles and parts what waits for them (a LayerNorm
over the last axis) into kernels of its own, and a way to plan again. Out: that plan, or one whose
tiles hold whole rows and do all of it in one epilogue, if that costs clearly less by the target's
model. Both estimates stand in the reason, or in a refusal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kernelwright.graph import hint
from kernelwright.plan.conv_seats import ConvTime, ConvWay
from kernelwright.plan.epilogue import Unfit
from kernelwright.plan.model import Plan, Region
from kernelwright.plan.reasons import Code, Refusal, reason
from kernelwright.plan.seats import Ways
from kernelwright.plan.walks import PLACES, walk

# The model makes too little of stages that wait for one another in an epilogue: on an H200 a
# LayerNorm over rows of 126 and a GELU take 134 us so, and 118 in parts, where it says 94 and 115;
# a smaller one in three dimensions 131 and 146, where it says 115 and 148.
LEAD = 0.8


def hold_rows(plan: Plan, found: Ways, conv_time: ConvTime, again: Callable[[Ways], Plan]) -> Plan:
    """The plan with whole rows on tiles where that costs less; `again` plans with other ways."""
    for name, way in found.convolutions.items():
        if name in found.whole or not _in_parts(plan, name, way):
            continue
        holding = replace(found, whole=found.whole | {name})
        other = again(holding)
        region = next((r for r in _made(other, name) if r.why.code is Code.CONV), None)
        if region is None:
            continue  # no tile holds whole rows, the library is faster, or others read it too
        ours, parts = (_time(*of, way, conv_time) for of in ((other, plan), (plan, other)))
        if not _made(plan, name):
            plan, found = other, holding  # the library is faster than rows in parts alone
        elif ours < LEAD * parts:
            own = dict(region.why.numbers)
            library = float(str(own["library"])) - float(str(own["ours"])) + ours
            numbers = own | {"ours": ours, "parts": parts, "library": library}
            why = reason(Code.CONV_ROWS, **numbers)
            regions = [replace(r, why=why) if r is region else r for r in other.regions]
            plan, found = replace(other, regions=tuple(regions)), holding
        else:
            origin = plan.graph[name].origin
            why = reason(Code.ROWS_APART, op=origin.op, parts=parts, ours=ours)
            refusal = Refusal(origin.op, origin.place, why)
            plan = replace(plan, refusals=(*plan.refusals, refusal))
    return plan


def _made(plan: Plan, name: str) -> list[Region]:
    """The kernels that generate the convolution."""
    return [r for r in plan.regions if r.conv is not None and r.conv.product == name]


def _in_parts(plan: Plan, name: str, way: ConvWay) -> bool:
    """Whether a kernel reduces rows along the width, and another one waits for them."""
    readers = [*_made(plan, name), *(r for r in plan.regions if name in r.reads)]
    return len(readers) > 1 and any(_along_width(plan, r, name, way) for r in readers)


def _along_width(plan: Plan, region: Region, name: str, way: ConvWay) -> bool:
    if region.program is None:
        return False
    try:
        walked = walk(region.program, name, way.form, plan.graph)
    except Unfit:
        return False
    return not walked.local and walked.reduced <= {d.atom for d in walked.of(PLACES[-1])}


def _time(plan: Plan, other: Plan, way: ConvWay, conv_time: ConvTime) -> float:
    """Microseconds of the generated convolutions and the kernels that the other plan has not."""
    total, kept = 0.0, [_contents(r) for r in other.regions]
    for region in (r for r in plan.regions if _contents(r) not in kept):
        conv, program = region.conv, region.program
        if conv is not None and program is not None:
            walked = walk(program, conv.product, conv.form, plan.graph)
            timed = conv_time(walked, conv.form, conv.loop, conv.typical)
            total += timed.time if timed is not None else 0.0
        elif region.kind == "rowwise":
            moved, operations = (float(hint(n, way.batch)) for n in (region.bytes, region.flops))
            total += way.loop.pass_time(moved, operations)
    return total


def _contents(region: Region) -> tuple[object, ...]:
    return region.kind, region.nodes, region.outputs, region.bytes
