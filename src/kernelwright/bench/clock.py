"""How one call is timed on each device: the cache is flushed first, and only the call is inside.

A Clock's `time(call)` returns a Reading whose milliseconds may be asked for after `finish()`. On
the GPU events bracket the call while the host runs ahead through the flush, so a fast host is
hidden and a slow one shows, as for a user; on the CPU it is the wall clock.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Protocol

import torch

CPU_FLUSH_BYTES = 64 << 20

# Taken when this is imported, which for a candidate's process is before the candidate is loaded.
Event = torch.cuda.Event
record, elapsed, synchronize = Event.record, Event.elapsed_time, torch.cuda.synchronize


@dataclass(frozen=True)
class Reading:
    """Time on the device (known once the clock has finished) and time in the Python call."""

    device_ms: Callable[[], float]
    host_ms: float


class Clock(Protocol):
    flush_bytes: int
    what: str

    def time(self, call: Callable[[], object]) -> Reading: ...

    def finish(self) -> None: ...


class CpuClock:
    what = "host wall time"

    def __init__(self) -> None:
        self.flush_bytes = CPU_FLUSH_BYTES
        self._junk = torch.zeros(self.flush_bytes // 4)

    def time(self, call: Callable[[], object]) -> Reading:
        self._junk.add_(1.0)
        start = perf_counter()
        call()
        elapsed = (perf_counter() - start) * 1e3
        return Reading(lambda: elapsed, elapsed)

    def finish(self) -> None:
        """Calls on the CPU have ended when they return."""


class CudaClock:
    what = "CUDA events around the call (host ms: until the call returns)"

    def __init__(self, device: torch.device) -> None:
        properties = torch.cuda.get_device_properties(device)
        self._device = device
        self.flush_bytes = 2 * int(properties.L2_cache_size)
        self._junk = torch.zeros(self.flush_bytes // 4, device=device)

    def time(self, call: Callable[[], object]) -> Reading:
        before = Event(enable_timing=True)  # type: ignore[no-untyped-call]
        after = Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._junk.zero_()
        record(before)
        start = perf_counter()
        call()
        host = (perf_counter() - start) * 1e3
        record(after)
        return Reading(lambda: float(elapsed(before, after)), host)

    def finish(self) -> None:
        synchronize(self._device)


def make_clock(device: torch.device) -> Clock:
    return CudaClock(device) if device.type == "cuda" else CpuClock()


def device_name(device: torch.device) -> str:
    """The name of the hardware, as a table of results should state it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{_cpu_name()}, {torch.get_num_threads()} threads"


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.is_file() else ""
    if lscpu := shutil.which("lscpu"):
        text += subprocess.run([lscpu], capture_output=True, text=True, check=False).stdout
    found = re.search(r"model name\s*:\s*(.+)", text, re.IGNORECASE)
    return found.group(1).strip() if found else platform.processor() or platform.machine()
