"""The main loops of a generated product: the arithmetic of each, its sizes, and from where it pays.

The times are a model of one NVIDIA H200, fitted to benchmarks/results/nvidia-h200-sweep.md: good
enough to say from how many rows on a generated product beats the library's, which is all they are
used for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

TILE_ROWS = 128
MULTIPROCESSORS = 132
STAGE_DEPTH = 64
# Microseconds of launches and of the last epilogue; bytes that a microsecond splits or reads.
OVERHEAD, LIBRARY_OVERHEAD = 12.0, 8.0
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
    float32. `stage` is the time of 64 of depth of the widest tile, `library` the rate of the
    library's product in floating-point operations, both in microseconds.
    """

    name: str
    text: str
    planes: int
    multiple: int
    widths: tuple[int, ...]
    stage: float
    library: float
    itemsize: int

    def generated_time(self, rows: int, columns: int, depth: int) -> float:
        tiles = math.ceil(rows / TILE_ROWS) * math.ceil(columns / self.widths[-1])
        waves = math.ceil(tiles / MULTIPROCESSORS)
        moved = (4 + 2 * self.planes) * depth * (rows + columns) if self.planes else 0
        stages = waves * math.ceil(depth / STAGE_DEPTH)
        return OVERHEAD + stages * self.stage + moved / SPLIT_BYTES

    def library_time(self, rows: int, columns: int, depth: int) -> float:
        computed = 2 * rows * columns * depth / self.library
        return LIBRARY_OVERHEAD + max(computed, columns * depth * self.itemsize / READ_BYTES)

    def fewest(self, columns: int, depth: int) -> int | None:
        """The rows from which on the generated product is the faster one; None: it never is."""
        found = None
        for rows in reversed(ROWS):
            sizes = (rows, columns, depth)
            if self.generated_time(*sizes) >= self.library_time(*sizes):
                break
            found = rows
        return found


WIDE = (64, 128, 192, 256)
SPLIT = Loop("split", "float32 as three float16 products", 2, 1, (64, 128), 0.9, 50e6, 4)
ROUNDED = Loop("rounded", "float32 rounded as TF32 rounds", 1, 1, WIDE, 0.62, 390e6, 4)
BFLOAT16 = Loop("bfloat16", "bfloat16", 0, 8, WIDE, 0.67, 800e6, 2)
FLOAT16 = Loop("float16", "float16", 0, 8, WIDE, 0.67, 800e6, 2)


def loop_for(dtype: torch.dtype, precision: str) -> Loop | None:
    """The loop for operands of this type at a float32 matmul precision."""
    if dtype == torch.float32:
        return SPLIT if precision == "highest" else ROUNDED
    return {torch.bfloat16: BFLOAT16, torch.float16: FLOAT16}.get(dtype)
