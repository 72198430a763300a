"""What a target can keep close to the arithmetic; the walk asks nothing else of a machine."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from kernelwright.targets.target import Lanes, Target

# On the CPU and on a GPU: the window of a pool is such a row.
SHORT_ROW, OWN_WINDOW = 128, 64


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

    `launch_bytes` and `flops_per_byte` are what a launch and arithmetic cost beside memory traffic.
    Rows of up to `side_by_side` elements lie in the lanes of a vector, if more of them fit there
    than of their elements; windows of up to `one_thread` elements are a thread's own.
    """

    two_levels: Callable[[int, int], bool]
    launch_bytes: int
    flops_per_byte: int
    side_by_side: int = 0
    one_thread: int = 0


def geometry(elements: int, segment: int, vec: int, on: Lanes) -> Geometry | None:
    """Lay threads over a row of segments, or over a plain row (elements == segment)."""
    lanes = min(power_of_two(math.ceil(segment / vec)), on.warp)
    if elements == segment:
        while lanes < on.most_threads and _floats(segment, lanes, vec) > _aim(lanes, on):
            lanes *= 2
        lanes = _busy(segment, lanes, vec, on) if lanes <= on.warp else lanes
        teams, floats = 1, _floats(segment, lanes, vec)
    else:
        segments, each = elements // segment, _floats(segment, lanes, vec)
        wanted = power_of_two(math.ceil(segments * each / on.most_floats))
        teams = max(1, min(wanted, power_of_two(segments), on.most_threads // lanes))
        floats = math.ceil(segments / teams) * each
    most = on.most_floats * (2 if lanes * teams <= on.most_threads // 2 else 1)
    return Geometry(lanes, teams) if floats <= most else None


def _busy(segment: int, lanes: int, vec: int, on: Lanes) -> int:
    """Fewer lanes for a short row where many would have nothing to do.

    40 bfloat16 fill 5 of 8 lanes, or 3 rounds of 2 but for a sixth: 30.6 or 22.1 us for 409,600
    such rows on an H200. At least eight neighbours are read at once.
    """
    best = lanes
    while lanes > 2 and lanes * vec > 8 and _floats(segment, lanes // 2, vec) <= on.most_floats:
        lanes //= 2
        if _floats(segment, best, vec) * best > 1.2 * _floats(segment, lanes, vec) * lanes:
            best = lanes
    return best


def _aim(lanes: int, on: Lanes) -> int:
    """A row of 16384 is faster on 512 threads of 32 floats than on 1024 of 16."""
    return on.most_floats if 2 * lanes == on.most_threads else on.floats


def _floats(segment: int, lanes: int, vec: int) -> int:
    """What each lane holds of a segment."""
    return math.ceil(segment / (lanes * vec)) * vec


def power_of_two(value: int) -> int:
    """The smallest power of two that is not less."""
    return 1 << max(0, value - 1).bit_length()


def _fits_registers(elements: int, segment: int, on: Lanes) -> bool:
    """For every vector width that may be chosen later."""
    widths = [v for v in (1, 2, 4, 8) if segment % v == 0]
    return all(geometry(elements, segment, v, on) is not None for v in widths)


def limits_of(target: Target) -> Limits:
    """Registers hold a row on a GPU, elsewhere the second-level cache of one core does."""
    lanes, costs = target.lanes, (target.launch_bytes, target.flops_per_byte)
    if lanes is None:
        return Limits(lambda elements, segment: elements <= target.row_elements, *costs, SHORT_ROW)
    return Limits(
        lambda elements, segment: _fits_registers(elements, segment, lanes),
        *costs,
        one_thread=OWN_WINDOW,
    )
