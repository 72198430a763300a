"""What the launches of a generated product are decided by: all that is known before a call.

runtime/products.py decides, here for the example's sizes and in the emitted file for those of each
call: the one function is the other.
"""

from __future__ import annotations

from typing import Any

from kernelwright.graph import Dim, hint
from kernelwright.plan.model import Gemm
from kernelwright.runtime.products import ProductRule, product_launch

VECTOR = 4  # elements of a row that are read at once when it is split on the way


def launch_rule(gemm: Gemm, tile: tuple[int, int, int], at_once: int = 0) -> tuple[Any, ...]:
    """A ProductRule; with `at_once` 0 a block multiplies as many tiles at once as it pays."""
    right = gemm.right
    streams = gemm.batch == (1, 1) and right.along and _fours(right.row)
    streams = streams and isinstance(gemm.depth, int) and gemm.depth % VECTOR == 0
    return ProductRule(gemm.columns, hint(gemm.depth), tile, gemm.loop.planes, streams, at_once)


def decided(gemm: Gemm, tile: tuple[int, int, int], at_once: int, rows: int, matrices: int) -> Any:
    """A ProductLaunch for matrices of so many rows, on the chip that the loop is made for."""
    rule = launch_rule(gemm, tile, at_once)
    return product_launch(rows, matrices, rule, gemm.loop.tiling.processors, False)


def _fours(stride: Dim) -> bool:
    return isinstance(stride, int) and stride % VECTOR == 0
