"""Primitives become regions: which operators share a kernel, and why. See fuse.py for the walk."""

from kernelwright.plan.fuse import plan
from kernelwright.plan.limits import Limits, limits_for
from kernelwright.plan.model import Access, Buffer, Plan, Program, Region, Stage, Store
from kernelwright.plan.tails import Tail, tails

__all__ = [
    "Access",
    "Buffer",
    "Limits",
    "Plan",
    "Program",
    "Region",
    "Stage",
    "Store",
    "Tail",
    "limits_for",
    "plan",
    "tails",
]
