"""The main loops of a generated product: the arithmetic of each, and the sizes that it takes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

# Below so many rows the library reads the weight as fast, and neither splits nor pads.
FEWEST_SPLIT = 65
FEWEST_ROUNDED = 513
FEWEST_HALF = 513


@dataclass(frozen=True)
class Loop:
    """One main loop of kernels/gemm_sm90.cuh.

    `planes` says into how many float16 numbers each float32 operand is split on the way; 0: the
    operands are multiplied as they are in memory, and then their rows must be a `multiple` of 16
    bytes, since tensor copies move no less. `widths` are the tiles whose accumulators fit the
    registers: two planes have them twice, once for the tensor cores and once to add these up in
    float32.
    """

    name: str
    text: str
    planes: int
    multiple: int
    widths: tuple[int, ...]
    fewest: int


WIDE = (64, 128, 192, 256)
SPLIT = Loop("split", "float32 as three float16 products", 2, 1, (64, 128), FEWEST_SPLIT)
ROUNDED = Loop("rounded", "float32 rounded as TF32 rounds", 1, 1, WIDE, FEWEST_ROUNDED)
BFLOAT16 = Loop("bfloat16", "bfloat16", 0, 8, WIDE, FEWEST_HALF)
FLOAT16 = Loop("float16", "float16", 0, 8, WIDE, FEWEST_HALF)


def loop_for(dtype: torch.dtype, precision: str) -> Loop | None:
    """The loop for operands of this type at a float32 matmul precision."""
    if dtype == torch.float32:
        return SPLIT if precision == "highest" else ROUNDED
    return {torch.bfloat16: BFLOAT16, torch.float16: FLOAT16}.get(dtype)
