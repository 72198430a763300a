"""Any processor with a C++ compiler and OpenMP: rows that stay in the cache of a core."""

from __future__ import annotations

from kernelwright.targets.target import Target

CPU = Target("cpu", "cpu", row_elements=1 << 18)
