"""The windows of pools and convolutions, read off the arguments of a captured operator.

In: a node. Out: its window along each axis, or why a law that counts each place of it once does not
hold. A list with one number means that number along every axis.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernelwright.graph import Node

MAX_POOLS = tuple(f"max_pool{rank}d" for rank in (1, 2, 3))
AVG_POOLS = tuple(f"avg_pool{rank}d" for rank in (1, 2, 3))
KERNEL, STRIDE, PADDING, DILATION, MAX_CEIL, AVG_CEIL, DIVISOR = 1, 2, 3, 4, 5, 4, 6


def each(value: Sequence[int], rank: int) -> tuple[int, ...]:
    """A number for every axis."""
    return tuple(value) * rank if len(value) == 1 else tuple(value)


def pool_window(pool: Node) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Size and step of a pool's window along each axis."""
    rank = int(pool.op[-2])
    kernel, stride = (each(pool.args[i], rank) for i in (KERNEL, STRIDE))
    return kernel, stride or kernel


def uneven(pool: Node) -> str | None:
    """Why not all of a pool's windows are alike, and made of the input's own places alone."""
    is_max = pool.op in MAX_POOLS
    if any(pool.args[PADDING]) or pool.args[MAX_CEIL if is_max else AVG_CEIL]:
        return f"{pool.name} pads or rounds up"
    if is_max and any(d != 1 for d in pool.args[DILATION]):
        return f"{pool.name} is dilated"
    if pool.op in ("avg_pool2d", "avg_pool3d") and pool.args[DIVISOR] is not None:
        return f"{pool.name} divides by another number than the window's size"
    return None
