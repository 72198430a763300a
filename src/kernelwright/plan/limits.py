"""What a backend can keep close to the arithmetic; the planner asks nothing else of a machine."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

WARP = 32
MOST_THREADS = 1024
# Floats of a row that a thread keeps: enough loads in flight, few enough registers.
FLOATS_PER_THREAD = 16
MOST_FLOATS_PER_THREAD = 32


@dataclass(frozen=True)
class Geometry:
    """Threads over a row that stays in registers: `lanes` own a segment, `teams` share the row."""

    lanes: int
    teams: int

    @property
    def row_threads(self) -> int:
        return self.lanes * self.teams


@dataclass(frozen=True)
class Limits:
    """`two_levels(elements, segment)`: whether a kernel can hold such a row with its segments.

    `launch_bytes` is the memory traffic in the time that one more kernel takes to begin and end.
    """

    two_levels: Callable[[int, int], bool]
    launch_bytes: int


def geometry(elements: int, segment: int, vec: int) -> Geometry | None:
    """Lay threads over a row of segments, or over a plain row (elements == segment)."""
    lanes = min(power_of_two(math.ceil(segment / vec)), WARP)
    if elements == segment:
        while lanes < MOST_THREADS and _floats(segment, lanes, vec) > _aim(lanes):
            lanes *= 2
        lanes = _busy(segment, lanes, vec) if lanes <= WARP else lanes
        teams, floats = 1, _floats(segment, lanes, vec)
    else:
        segments, each = elements // segment, _floats(segment, lanes, vec)
        wanted = power_of_two(math.ceil(segments * each / MOST_FLOATS_PER_THREAD))
        teams = max(1, min(wanted, power_of_two(segments), MOST_THREADS // lanes))
        floats = math.ceil(segments / teams) * each
    most = 2 * MOST_FLOATS_PER_THREAD if lanes * teams <= 512 else MOST_FLOATS_PER_THREAD
    return Geometry(lanes, teams) if floats <= most else None


def _busy(segment: int, lanes: int, vec: int) -> int:
    """Fewer lanes for a short row where many would have nothing to do.

    40 bfloat16 fill 5 of 8 lanes, or 3 rounds of 2 but for a sixth: 30.6 or 22.1 us for 409,600
    such rows on an H200. At least eight neighbours are read at once.
    """
    best = lanes
    while (
        lanes > 2
        and lanes * vec > 8
        and _floats(segment, lanes // 2, vec) <= MOST_FLOATS_PER_THREAD
    ):
        lanes //= 2
        if _floats(segment, best, vec) * best > 1.2 * _floats(segment, lanes, vec) * lanes:
            best = lanes
    return best


def _aim(lanes: int) -> int:
    """A row of 16384 is faster on 512 threads of 32 floats than on 1024 of 16."""
    return MOST_FLOATS_PER_THREAD if lanes == 512 else FLOATS_PER_THREAD


def _floats(segment: int, lanes: int, vec: int) -> int:
    """What each lane holds of a segment."""
    return math.ceil(segment / (lanes * vec)) * vec


def power_of_two(value: int) -> int:
    """The smallest power of two that is not less."""
    return 1 << max(0, value - 1).bit_length()


def _fits_registers(elements: int, segment: int) -> bool:
    """For every vector width that may be chosen later."""
    widths = [v for v in (1, 2, 4, 8) if segment % v == 0]
    return all(geometry(elements, segment, v) is not None for v in widths)


def _fits_cache(elements: int, segment: int) -> bool:
    """A row and its intermediate fields in the second-level cache of one core."""
    return elements <= CACHED_ELEMENTS


CACHED_ELEMENTS = 1 << 18
CUDA = Limits(_fits_registers, launch_bytes=8 << 20)
CPU = Limits(_fits_cache, launch_bytes=1 << 17)


def limits_for(device: str) -> Limits:
    return CUDA if device == "cuda" else CPU
