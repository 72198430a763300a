"""What this machine's processor has and does: asked of the system, and measured once.

In: the system, and a second of the processor's time. Out: a Processor, kept in the cache by what it
depends on. Rates are those of as many threads as torch has, each the best of some tries: how fast a
large matrix is read, how fast the library multiplies, and how long it takes for a few rows against
reading their weight. What is left of that is what a kernel of few rows could gain.
"""

from __future__ import annotations

import contextlib
import json
import math
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

from kernelwright import cache
from kernelwright.errors import InputError
from kernelwright.notebook import Notebook
from kernelwright.runtime.build import features, instructions

# The vectors of an instruction set, in float32 numbers, and how many registers hold them.
VECTORS = {"avx512f": (16, 32), "avx": (8, 16), "asimd": (4, 32)}
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
SIDE, FEW, TRIES = 6144, 8, 5  # a weight that no cache of a core holds, and its rows
NOTEBOOK = Notebook(cache.processors_file, "processors", format=1)


@dataclass(frozen=True)
class Processor:
    """`reads` in bytes and `multiplies` in operations, a second; `few` is a ratio of times."""

    name: str
    lanes: int
    registers: int
    caches: tuple[int, ...]
    threads: int
    reads: float
    multiplies: float
    few: float

    def __str__(self) -> str:
        caches = " + ".join(f"{size >> 10} KiB" for size in self.caches) or "unknown"
        return (
            f"{self.name}, {self.threads} threads; {self.registers} vectors of {self.lanes}; caches"
            f" {caches}; reads {self.reads / 1e9:.0f} GB/s; the library multiplies"
            f" {self.multiplies / 1e9:.0f} GFLOP/s, and {FEW} rows in {self.few:.1f} times what"
            " reading their weight takes"
        )


def this_processor() -> Processor:
    """This one; measured where the cache does not know it yet."""
    threads = torch.get_num_threads()
    key = json.dumps([name(), *instructions(), threads, torch.__version__])
    kept = NOTEBOOK.recall(key)
    with contextlib.suppress(KeyError, TypeError, ValueError):
        rates = [float(kept[what]) for what in ("reads", "multiplies", "few")]
        if all(rate > 0 and math.isfinite(rate) for rate in rates):
            return _with(threads, *rates)
    found = _with(threads, *measured())
    with contextlib.suppress(OSError, InputError):  # then it is measured again
        NOTEBOOK.keep(key, asdict(found))
    return found


def _with(threads: int, reads: float, multiplies: float, few: float) -> Processor:
    lanes, registers = next((v for n, v in VECTORS.items() if n in features()), (4, 16))
    return Processor(name(), lanes, registers, caches(), threads, reads, multiplies, few)


@torch.no_grad()
def measured() -> tuple[float, float, float]:
    """Bytes read and operations of a product a second, and the time of few rows over reading."""
    weight, x = torch.ones(SIDE, SIDE), torch.ones(1024, SIDE)
    reading = _least(weight.sum)
    few = _least(lambda: F.linear(x[:FEW], weight))
    part = weight[:1024]
    product = _least(lambda: F.linear(x, part))
    return 4 * SIDE**2 / reading, 2 * 1024**2 * SIDE / product, few / reading


def _least(call: Callable[[], object]) -> float:
    times = []
    for _ in range(TRIES + 1):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times[1:])


def name() -> str:
    """As the system calls it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def caches() -> tuple[int, ...]:
    """Bytes of a core's first cache for data, and of those behind it."""
    found: dict[int, int] = {}
    for place in sorted(CACHES.glob("index*")):
        with contextlib.suppress(OSError, ValueError):
            kind, level, size = (
                (place / file).read_text().strip() for file in ("type", "level", "size")
            )
            if kind != "Instruction":
                found[int(level)] = int(size.removesuffix("K")) << 10
    return tuple(size for _, size in sorted(found.items()))
