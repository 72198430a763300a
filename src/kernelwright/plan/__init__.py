"""Primitives become regions: which operators share a kernel, and why. See fuse.py for the walk."""

from kernelwright.plan.alone import leave_alone
from kernelwright.plan.epilogue import Seat, decompose, needs_whole_tiles
from kernelwright.plan.fuse import plan
from kernelwright.plan.limits import Limits, limits_for
from kernelwright.plan.loops import Loop
from kernelwright.plan.model import (
    Access,
    Buffer,
    Coordinate,
    Gemm,
    Plan,
    Program,
    Range,
    Region,
    Stage,
    Store,
    element_type,
)
from kernelwright.plan.seats import generated, seat
from kernelwright.plan.tails import Tail, tails

__all__ = [
    "Access",
    "Buffer",
    "Coordinate",
    "Gemm",
    "Limits",
    "Loop",
    "Plan",
    "Program",
    "Range",
    "Region",
    "Seat",
    "Stage",
    "Store",
    "Tail",
    "decompose",
    "element_type",
    "generated",
    "leave_alone",
    "limits_for",
    "needs_whole_tiles",
    "plan",
    "seat",
    "tails",
]
