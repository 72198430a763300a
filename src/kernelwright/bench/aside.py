"""What is measured of a variant beside its time: a call that is waited for, its peak of memory."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterable
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from kernelwright.bench.clock import Clock
from kernelwright.bench.context import quiet_stderr

SYNCHRONOUS = 10  # calls, of which the median counts


def synchronous_ms(call: Callable[[], object], clock: Clock) -> float:
    """One call and the wait for it, as a script sees it."""
    clock.finish()
    start = time.perf_counter()
    call()
    clock.finish()
    return (time.perf_counter() - start) * 1e3


def peak_bytes(call: Callable[[], object], device: torch.device) -> int:
    """The most that a call has allocated at once, beyond what there was before it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        torch.cuda.synchronize(device)
        return int(torch.cuda.max_memory_allocated(device) - before)
    from torch.profiler import ProfilerActivity, profile

    recording = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    with quiet_stderr(), recording as recorded:
        call()
    events = sorted(exported(recorded)["traceEvents"], key=lambda e: float(e.get("ts", 0)))
    return most_at_once(e["args"]["Bytes"] for e in events if e.get("name") == "[memory]")


def most_at_once(changes: Iterable[int]) -> int:
    """The largest sum of what was allocated (positive) and freed (negative) up to any moment."""
    return max(accumulate(changes), default=0)


def exported(recorded: Any) -> dict[str, Any]:
    """What torch.profiler has recorded, as Chrome's trace format has it, which Perfetto reads."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        recorded.export_chrome_trace(str(path))
        trace: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return trace
