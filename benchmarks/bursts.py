"""What a call costs the host: bursts of calls that nobody waits for, in turns.

The host runs ahead of a GPU, so a burst takes the host's own time; on a CPU, where it is one call,
it is that of the call.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from kernelwright.formats.evaluator import wait

LEAD, BURST, WARMUPS = 5, 20, 3


def medians(ways: Mapping[str, Callable[..., Any]], x: Tensor, bursts: int) -> dict[str, float]:
    """Microseconds by way, and by `way, no_grad`; a busy moment of the machine hits all ways."""
    readings: dict[str, list[float]] = {}
    for burst in range(-WARMUPS, bursts):
        for way, call in ways.items():
            for grad in (True, False):
                with torch.set_grad_enabled(grad):
                    taken = burst_us(call, x)
                if burst >= 0:
                    readings.setdefault(way if grad else f"{way}, no_grad", []).append(taken)
    return {way: statistics.median(taken) for way, taken in readings.items()}


def burst_us(call: Callable[..., Any], x: Tensor) -> float:
    """The first calls after a wait are slower than those that a program makes in a row."""
    lead, count = (LEAD, BURST) if x.is_cuda else (0, 1)
    wait(x.device)
    results = [call(x) for _ in range(lead)]
    start = time.perf_counter()
    results += [call(x) for _ in range(count)]
    taken = (time.perf_counter() - start) / count * 1e6
    del results
    return taken
