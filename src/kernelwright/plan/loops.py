"""The main loops of a generated product: the arithmetic of each, its sizes, and from where it pays.

The times are a model of one NVIDIA H200, fitted to 65 products of the sweep's sizes that were
timed both ways (benchmarks/results/nvidia-h200-ways.md). Generated products with their epilogue are
within 14% of it, from 26 us to 3.5 ms; a second kernel after a product is in neither time. It says
from how many rows on a generated product beats the library's, and which tile it gets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

TILE_ROWS = 128
MULTIPROCESSORS = 132
STAGE_DEPTH = 64
# Microseconds of launches, with the library's product those of the kernel after it; bytes that a
# microsecond splits or reads.
OVERHEAD, LIBRARY_OVERHEAD = 12.0, 12.0
SPLIT_BYTES, READ_BYTES = 3.8e6, 4.0e6
# Numbers of rows that are compared; behind the last one a product is the library's.
ROWS = tuple(sorted({base << k for base in (64, 96) for k in range(9)}))


@dataclass(frozen=True)
class Loop:
    """One main loop of kernels/gemm_sm90.cuh.

    `planes` says into how many float16 numbers each float32 operand is split on the way; 0: the
    operands are multiplied as they are in memory, and then their rows must be a `multiple` of 16
    bytes, since tensor copies move no less. `widths` are the tiles whose accumulators fit the
    registers: two planes have them twice, once for the tensor cores and once to add these up in
    float32. `stage` is the time of 64 of depth and `ending` that of an epilogue, each for a tile of
    no columns and for each column of it; `library` is the rate of the library's product in
    floating-point operations. All are in microseconds.
    """

    name: str
    text: str
    planes: int
    multiple: int
    widths: tuple[int, ...]
    stage: tuple[float, float]
    ending: tuple[float, float]
    library: float
    itemsize: int

    def tile_time(self, width: int, depth: int, extra: float = 0.0) -> float:
        """A tile; `extra` columns are multiplied with it, but have no epilogue."""
        stage = self.stage[0] + self.stage[1] * (width + extra)
        return math.ceil(depth / STAGE_DEPTH) * stage + self.ending[0] + self.ending[1] * width

    def tiles_time(self, width: int, rows: int, columns: int, depth: int) -> float:
        """The busiest multiprocessor's tiles of a width."""
        tiles = math.ceil(rows / TILE_ROWS) * math.ceil(columns / width)
        return math.ceil(tiles / MULTIPROCESSORS) * self.tile_time(width, depth)

    def generated_time(self, width: int, rows: int, columns: int, depth: int) -> float:
        moved = (4 + 2 * self.planes) * depth * (rows + columns) if self.planes else 0
        return OVERHEAD + self.tiles_time(width, rows, columns, depth) + moved / SPLIT_BYTES

    def library_time(self, rows: int, columns: int, depth: int) -> float:
        computed = 2 * rows * columns * depth / self.library
        return LIBRARY_OVERHEAD + max(computed, columns * depth * self.itemsize / READ_BYTES)

    def fewest(self, typical: int, columns: int, depth: int) -> int | None:
        """The rows from which on the generated product is the faster one; None: it never is.

        An emitted file has one tile for any number of rows, the best one for typically many.
        """
        width = min(self.widths, key=lambda w: self.tiles_time(w, typical, columns, depth))
        found = None
        for rows in reversed(ROWS):
            sizes = (rows, columns, depth)
            if self.generated_time(width, *sizes) >= self.library_time(*sizes):
                break
            found = rows
        return found


WIDE = (64, 128, 192, 256)
ONE_PLANE = ((0.06, 0.0022), (0.5, 0.037))
TWO_PLANES = ((0.1, 0.006), (0.5, 0.02))
SPLIT = Loop("split", "float32 as three float16 products", 2, 1, (64, 128), *TWO_PLANES, 50e6, 4)
ROUNDED = Loop("rounded", "float32 rounded as TF32 rounds", 1, 1, WIDE, *ONE_PLANE, 390e6, 4)
BFLOAT16 = Loop("bfloat16", "bfloat16", 0, 8, WIDE, *ONE_PLANE, 800e6, 2)
FLOAT16 = Loop("float16", "float16", 0, 8, WIDE, *ONE_PLANE, 800e6, 2)


def loop_for(dtype: torch.dtype, precision: str) -> Loop | None:
    """The loop for operands of this type at a float32 matmul precision."""
    if dtype == torch.float32:
        return SPLIT if precision == "highest" else ROUNDED
    return {torch.bfloat16: BFLOAT16, torch.float16: FLOAT16}.get(dtype)
