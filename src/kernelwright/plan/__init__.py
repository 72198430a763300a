"""Primitives become regions: which operators share a kernel, and why. See fuse.py for the walk."""

from kernelwright.plan.fuse import plan
from kernelwright.plan.limits import Limits, limits_for
from kernelwright.plan.model import Access, Buffer, Plan, Program, Region, Stage, Store

__all__ = [
    "Access",
    "Buffer",
    "Limits",
    "Plan",
    "Program",
    "Region",
    "Stage",
    "Store",
    "limits_for",
    "plan",
]
