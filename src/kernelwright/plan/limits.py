"""What a backend can keep close to the arithmetic; the planner asks nothing else of a machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """`resident`: elements of a row, `segment`: of a segment, that a two-level kernel may hold."""

    resident: int
    segment: int


# 1024 threads of 32 floats each hold a row; 32 lanes of 64 floats each hold a segment.
CUDA = Limits(resident=32768, segment=2048)
# A row and its intermediate fields should fit the second-level cache of one core.
CPU = Limits(resident=1 << 18, segment=1 << 18)


def limits_for(device: str) -> Limits:
    return CUDA if device == "cuda" else CPU
