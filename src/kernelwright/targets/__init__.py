"""The machines that there is code for. See target.py for what a Target says."""

from __future__ import annotations

import platform

import torch

from kernelwright.errors import InputError
from kernelwright.targets.cpu import CPU
from kernelwright.targets.sm_80 import SM_80
from kernelwright.targets.sm_90 import SM_90
from kernelwright.targets.target import (
    Attending,
    ConvLoop,
    CoreAttending,
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
    "CoreAttending",
    "Lanes",
    "LibraryConvolutions",
    "Loop",
    "SmallConvolutions",
    "Sums",
    "Target",
    "Thin",
    "Tiling",
    "target_for",
    "target_of",
]

ALL = (SM_90, SM_80, CPU, X86_64)


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
        major = torch.cuda.get_device_capability(device)[0]
        return SM_90 if major == 9 else SM_80
    if device.type == "cpu" and platform.machine().lower() in ("x86_64", "amd64"):
        return X86_64
    return target_for(device.type)
