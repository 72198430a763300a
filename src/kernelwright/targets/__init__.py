"""The machines that there is code for. See target.py for what a Target says."""

from __future__ import annotations

import platform
from dataclasses import replace

import torch

from kernelwright.errors import InputError
from kernelwright.targets.cpu import CPU
from kernelwright.targets.processor import this_processor
from kernelwright.targets.sm_80 import SM_80
from kernelwright.targets.sm_90 import SM_90
from kernelwright.targets.target import (
    Attending,
    ConvLoop,
    Convolving,
    CoreAttending,
    HostWay,
    HostWays,
    Lanes,
    LibraryConvolutions,
    Loop,
    SmallConvolutions,
    Sums,
    Target,
    Thin,
    Tiling,
)
from kernelwright.targets.x86_64 import X86_64

__all__ = [
    "CPU",
    "SM_80",
    "SM_90",
    "X86_64",
    "Attending",
    "ConvLoop",
    "Convolving",
    "CoreAttending",
    "HostWay",
    "HostWays",
    "Lanes",
    "LibraryConvolutions",
    "Loop",
    "SmallConvolutions",
    "Sums",
    "Target",
    "Thin",
    "Tiling",
    "target_for",
    "target_here",
    "target_of",
    "target_of_capability",
]

ALL = (SM_90, SM_80, CPU, X86_64)
PORTABLE = SM_80  # its kernels need no more than any newer GPU has
UNKNOWN = (
    "There are no kernels made for GPUs of compute capability {major}.{minor} yet: this one runs"
    " the portable ones, and its products, convolutions and attentions stay with the library."
)


def target_for(name: str) -> Target:
    """A target by its name; `cuda` alone means the newest GPU that there are kernels for."""
    found = next((t for t in ALL if name in (t.name, t.device)), None)
    if found is None:
        names = ", ".join(t.name for t in ALL)
        raise InputError(f"There is no target {name!r}; choose from: {names}.")
    return found


def target_of(device: torch.device) -> Target:
    """What this device is; without a GPU to ask, the newest."""
    if device.type == "cuda" and torch.cuda.is_available():
        return target_of_capability(*torch.cuda.get_device_capability(device))
    if device.type == "cpu" and platform.machine().lower() in ("x86_64", "amd64"):
        return X86_64
    return target_for(device.type)


def target_here(device: torch.device) -> Target:
    """The same; on a CPU with what its processor measures up to, for who will run there."""
    found = target_of(device)
    if found.host is None:
        return found
    return replace(found, host=replace(found.host, processor=this_processor))


def target_of_capability(major: int, minor: int) -> Target:
    """What a GPU of this compute capability is; one that nobody has described is portable."""
    known = next((t for t in ALL if major in t.majors), None)
    if known is not None:
        return known
    notice = UNKNOWN.format(major=major, minor=minor)
    return replace(PORTABLE, name=f"sm_{major}{minor}", notice=notice)
