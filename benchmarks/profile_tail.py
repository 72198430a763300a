"""The GPU kernels of one call, by name: what a model does besides its matrix product.

In: a module and its inputs, on a GPU. Out: a Tail. The memory floor of a tail is the time to read
the product once and to write the outputs once at the measured copy bandwidth.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

COPY_BANDWIDTH = 4.2e12  # bytes per second, read and written, measured on an H200
# Kernels of the vendor's library; generated ones may well have "gemm" in a name of the user's.
PRODUCT = re.compile(r"cublas|cutlass|nvjet|xmma|sgemm|gemv|splitK", re.IGNORECASE)
CALLS = 20


@dataclass(frozen=True)
class KernelTime:
    """One kernel's mean time in a call, and how often the call launches it."""

    name: str
    ms: float
    launches: float


@dataclass(frozen=True)
class Tail:
    """The kernels of a call that are no matrix product, beside what they must move."""

    product: tuple[KernelTime, ...]
    kernels: tuple[KernelTime, ...]
    bytes: int

    @property
    def ms(self) -> float:
        return sum(k.ms for k in self.kernels)

    @property
    def floor_ms(self) -> float:
        return self.bytes / COPY_BANDWIDTH * 1e3

    @property
    def gigabytes_per_second(self) -> float:
        return self.bytes / self.ms / 1e6 if self.ms else 0.0

    @property
    def ratio_to_floor(self) -> float:
        return self.ms / self.floor_ms


def profile_tail(module: Callable[..., Any], inputs: tuple[Any, ...], moved: int) -> Tail:
    """Profile calls with a flushed cache and split the kernels into product and tail."""
    device = next(x.device for x in inputs if isinstance(x, torch.Tensor))
    l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
    junk = torch.empty(l2_bytes // 2, dtype=torch.int32, device=device)
    for _ in range(3):
        module(*inputs)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for _ in range(CALLS):
            junk.fill_(7)
            module(*inputs)
        torch.cuda.synchronize()
    kernels = [
        KernelTime(event.key, event.device_time_total / 1e3 / CALLS, event.count / CALLS)
        for event in recorded.key_averages()
        if event.device_time_total > 0 and not _is_flush(event.key)
    ]
    kernels.sort(key=lambda k: -k.ms)
    return Tail(
        tuple(k for k in kernels if PRODUCT.search(k.name)),
        tuple(k for k in kernels if not PRODUCT.search(k.name)),
        moved,
    )


def _is_flush(name: str) -> bool:
    return "FillFunctor<int>" in name
