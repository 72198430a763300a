"""What disturbs a measurement: others on the device, a busy machine, clocks that are held back.

In: a device. Out: sentences. Nothing here changes a figure; a figure that was taken beside other
work, or at a lowered clock, says so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

LOOK = 0.25  # seconds
BUSY = 0.2  # of the cores, from which on others are told of
HELD = {
    "sw_power_cap": "its power limit",
    "hw_slowdown": "a slowdown by the hardware",
    "hw_thermal_slowdown": "its temperature",
    "sw_thermal_slowdown": "its temperature",
    "hw_power_brake_slowdown": "a brake on its power",
}


def before(device: torch.device) -> list[str]:
    """Who else is at work; to be asked before anything of ours is."""
    found = []
    if device.type == "cuda":
        found += others(_smi(device, "--query-compute-apps=pid,process_name,used_memory"))
    first = _ticks()
    time.sleep(LOOK)
    found += load(first, _ticks(), os.cpu_count() or 1)
    return found


def others(lines: Sequence[str]) -> list[str]:
    """From nvidia-smi's list of processes."""
    apps = [[part.strip() for part in line.split(",")] for line in lines]
    named = ", ".join(f"{name} (process {pid}, {memory} MiB)" for pid, name, memory in apps)
    return [f"Others use the GPU: {named}; times are not those of a GPU alone"] if apps else []


def load(first: Sequence[int], last: Sequence[int], cores: int) -> list[str]:
    """From two readings of (busy, all) ticks of all cores together."""
    busy, every = (after - at for at, after in zip(first, last, strict=True))
    share = busy / every if every > 0 else 0.0
    if share < BUSY:
        return []
    return [
        f"The machine is busy with other work: {share * cores:.1f} of its {cores} cores; "
        "times vary with it"
    ]


def _ticks() -> tuple[int, int]:
    """Busy ticks of all cores, and all ticks, since the machine started."""
    stat = Path("/proc/stat")
    if not stat.is_file():
        return 0, 0
    numbers = [int(n) for n in stat.read_text().splitlines()[0].split()[1:9]]
    idle = numbers[3] + numbers[4]  # idle, and waiting for disks
    return sum(numbers) - idle, sum(numbers)


class Clocks:
    """Whether clocks were held back between its beginning and `told`."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.first = _throttles()

    def told(self) -> list[str]:
        if self.device.type == "cuda":
            fields = [f"clocks_throttle_reasons.{name}" for name in HELD]
            lines = _smi(self.device, f"--query-gpu={','.join(fields)}")
            return held_back(dict(zip(HELD, _cells(lines), strict=False)))
        rises = sum(_throttles().values()) - sum(self.first.values())
        told = f"The CPU lowered its clock {rises} times for its temperature while it was timed"
        return [told] if rises > 0 else []


def held_back(reasons: Mapping[str, str]) -> list[str]:
    """From what nvidia-smi says of each reason."""
    active = dict.fromkeys(HELD[name] for name, state in reasons.items() if state == "Active")
    return [f"The GPU's clock was held back by {' and '.join(active)}"] if active else []


def _throttles() -> dict[str, int]:
    """How often each core has been throttled, where the kernel counts it."""
    found = Path("/sys/devices/system/cpu").glob("cpu[0-9]*/thermal_throttle/*_throttle_count")
    return {str(path): int(path.read_text()) for path in found}


def _cells(lines: Sequence[str]) -> list[str]:
    return [cell.strip() for line in lines[:1] for cell in line.split(",")]


def _smi(device: torch.device, query: str) -> list[str]:
    """Lines of nvidia-smi; none where it cannot be asked."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    identity = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    command = [program, query, "--format=csv,noheader,nounits", "-i", identity]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = asked.stdout.splitlines() if asked.returncode == 0 else []
    return [line for line in lines if line.strip()]
