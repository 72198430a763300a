"""Any processor with a C++ compiler and OpenMP: rows that stay in the cache of a core."""

from __future__ import annotations

from kernelwright.targets.target import Target

# A parallel region of OpenMP takes a few microseconds, and a core moves some 10 bytes a nanosecond.
CPU = Target("cpu", "cpu", launch_bytes=1 << 17, flops_per_byte=10, row_elements=1 << 18)
