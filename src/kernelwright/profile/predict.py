"""How long a step should take: its work and a machine's ceilings in, microseconds and why out.

Where the target has a model of a generated kernel, that is the prediction; elsewhere it is the
roofline: the longer of the time to move its bytes and the time to do its operations.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch

from kernelwright.bench.clock import device_name
from kernelwright.bench.roofline import MACHINES

MODEL = "the compiler's own model of this kernel"
COPIED = 256 << 20  # bytes, beyond any cache
SIDE = 1024  # of the product that shows the operations a second
TIMES = 5


def predicted(
    step: Mapping[str, Any], ceilings: Mapping[str, Any] | None
) -> tuple[float | None, str]:
    """The time in us and what it rests on; None where nobody knows the machine."""
    if step["model_us"] is not None:
        return float(step["model_us"]), MODEL
    if ceilings is None or not step["launches"]:
        return None, "the machine's ceilings were not measured"
    moving = step["bytes"] / ceilings["bandwidth"] * 1e6
    computing = step["flops"] / ceilings["flops"] * 1e6
    if moving >= computing:
        return moving, f"{step['bytes'] / 1e6:.3g} MB at {ceilings['bandwidth'] / 1e9:.4g} GB/s"
    return computing, f"{step['flops'] / 1e9:.3g} GFLOP at {ceilings['flops'] / 1e9:.4g} GFLOP/s"


def ceilings(device: torch.device, precision: str = "highest") -> dict[str, Any]:
    """Bytes and operations a second: from the datasheet where it is on record, else measured."""
    name = device_name(device)
    known = next((m for chip, m in MACHINES.items() if name.startswith(chip)), None)
    if known is not None:
        return {
            "bandwidth": known.bandwidth,
            "flops": known.flops[precision],
            "device": name,
            "where": f"the datasheet of the {name}",
        }
    source = torch.ones(COPIED // 4, device=device)
    target = torch.empty_like(source)
    left = torch.randn(SIDE, SIDE, device=device)
    moved = _least(lambda: target.copy_(source), device)
    computed = _least(lambda: left @ left, device)
    return {
        "bandwidth": 2 * COPIED / moved,
        "flops": 2 * SIDE**3 / computed,
        "device": name,
        "where": f"what torch's copy of {COPIED >> 20} MB and its product of {SIDE} x {SIDE} reach",
    }


def _least(call: Any, device: torch.device) -> float:
    """The shortest of a few times, in seconds."""
    found = []
    for _ in range(TIMES):
        start = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        found.append(time.perf_counter() - start)
    return min(found)
