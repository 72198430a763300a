"""Hopper: one multiprocessor's threads, the main loops of kernels/gemm_sm90.cuh, thin products.

The times are a model of one NVIDIA H200, fitted to 65 products of the sweep's sizes that were
timed both ways (benchmarks/results/nvidia-h200-ways.md). Generated products with their epilogue are
within 14% of it, from 26 us to 3.5 ms; a second kernel after a product is in neither time. It says
from how many rows on a generated product beats the library's, and which tile it gets.
"""

from __future__ import annotations

import torch

from kernelwright.targets.target import (
    Attending,
    ConvLoop,
    Convolving,
    Lanes,
    LibraryConvolutions,
    Loop,
    Sums,
    Target,
    Thin,
    ThinShape,
    Tiling,
)

WIDE = (64, 128, 192, 256)
TILING = Tiling(
    kernel="gemm_sm90",
    major="hopper::Major",
    capability=(9, 0),
    processors=132,
    rows=128,
    stage_depth=64,
    stage_row_bytes=128,
    shared_bytes=200 << 10,
    most_stages=6,
    widths=WIDE,
    clusters=(2, 1),
    bands=(8, 4, 16),
    overhead=12.0,
    library_overhead=12.0,
    kernel_overhead=3.0,
    split_rate=3.8e6,
    read_rate=4.0e6,
)


def _thin(steps: tuple[float, ...], rows: tuple[int, ...], fewest: int) -> Thin:
    """kernels/thin_sm90.cuh: a pair of blocks has 256 columns, or 128 and twice as many rows."""
    shapes = zip(rows, (256, 256, 128), (5.5, 7.5, 9.5), steps, strict=False)
    return Thin(
        kernel="thin_sm90",
        shapes=tuple(ThinShape(*s) for s in shapes),
        blocks=TILING.processors // 2,
        stage_depth=64,
        wave=4.0,
        part=0.6,
        fewest=fewest,
        multiple=4,
    )


SPLIT = Loop(
    "split",
    "SplitFloat",
    "float32 as three float16 products",
    torch.float32,
    "highest",
    planes=2,
    multiple=1,
    widths=(64, 128),
    stage=(0.1, 0.006),
    ending=(0.5, 0.02),
    library=50e6,
    tiling=TILING,
    thin=_thin((1.03, 1.4, 1.37), (64, 128, 256), fewest=1 << 20),
)
ROUNDED = Loop(
    "rounded",
    "RoundedFloat",
    "float32 rounded as TF32 rounds",
    torch.float32,
    "high",
    planes=1,
    multiple=1,
    widths=WIDE,
    stage=(0.06, 0.0022),
    ending=(0.5, 0.037),
    library=390e6,
    tiling=TILING,
    # The library's TF32 product is as fast for smaller weights and for more rows.
    thin=_thin((0.97,), (64,), fewest=1 << 26),
)


def _in_memory(name: str, dtype: torch.dtype) -> Loop:
    return Loop(
        name,
        name.capitalize(),
        name,
        dtype,
        "",
        planes=0,
        multiple=8,
        widths=WIDE,
        stage=ROUNDED.stage,
        ending=ROUNDED.ending,
        library=800e6,
        tiling=TILING,
    )


BFLOAT16 = _in_memory("bfloat16", torch.bfloat16)
FLOAT16 = _in_memory("float16", torch.float16)


# ---- attention (kernels/attention.cuh) ---------------------------------------------------------


def _attending(
    name: str, text: str, dtype: torch.dtype, precision: str, products: int, rate: float
) -> Attending:
    return Attending(
        name,
        text,
        dtype,
        precision,
        kernel="attention",
        capability=TILING.capability,
        products=products,
        rate=rate,
        memory=3.0e6,
        overhead=5.0,
        rows=16,
        warps=8,
        widest=64,
    )


# Measured in us on an H200 at `highest`: 8 x 12 heads of 512 tokens and 64 features 143, 16 x 12 of
# 197 and 64 74, 16 x 8 of 128 and 64 19, 256 x 6 of 49 and 32 with a bias 30; the first at `high`
# 115.
ATTENDING = (
    _attending("split", "float32 as three TF32 products", torch.float32, "highest", 3, 110e6),
    _attending("rounded", "float32 rounded to TF32", torch.float32, "high", 1, 58e6),
    # Not timed beside the library's products: so low that it is taken where it is certain to pay.
    _attending("bfloat16", "bfloat16", torch.bfloat16, "", 1, 30e6),
    _attending("float16", "float16", torch.float16, "", 1, 30e6),
)


# ---- convolutions (kernels/conv_sm90.cuh) ------------------------------------------------------

# kernels/conv_sm90.cuh: clocks of a multiprocessor, fitted to 60 tiles of 12 convolutions, then to
# 199 of 55 chains of benchmarks/corpus (rms of the error 27%). What rows of boxes, single results,
# phases of weights and meetings take is from 53 kernels, of each of which two or three tiles were
# timed later: the model picks one that takes 1.2% more than the best in the mean, before 2.8%.
CONVOLVING = Convolving(
    processors=132,
    clock=1700.0,
    shared_bytes=225 << 10,
    shared_rate=75.0,
    least_product=16.0,
    feed=220.0,
    feed_split=460.0,
    copied=300.0,
    box=300.0,
    row=(9.0, 3.0),
    feed_stage=300.0,
    ending=32.0,
    operation=3.0,
    single=3.0,
    phases=(25.0, 31.0),
    windows=3.0,
    early=3.0,
    meet=100.0,
    run=1.6,
    broken_run=4.7,
    fetch_rate=19.0,
    shared=(0.32, 0.3, 0.28),
    per_tile=1300.0,
    slice=800.0,
    roomy=128,
    crowded=1.12,
    memory_rate=3.8e6,
    overhead=8.0,
)


def _convolution(
    *names: str,
    dtype: torch.dtype,
    planes: int = 1,
    products: int = 1,
    rate: float,
    library: tuple[float, float, float],
) -> ConvLoop:
    """Rates of whole chains: ours with an epilogue, cuDNN's in the layout that is best for it."""
    name, symbol, text, accuracy = names
    return ConvLoop(
        name,
        symbol,
        text,
        dtype,
        accuracy,
        kernel="conv_sm90",
        tiles=CONVOLVING,
        capability=TILING.capability,
        planes=planes,
        products=products,
        rate=rate,
        library=library,
        library_channels=64,
        memory=3.8e6,
        overhead=8.0,
        kernel_overhead=3.0,
        arithmetic=14e6,
    )


CONV_LOOPS = (
    _convolution(
        *("split", "ConvSplitFloat", SPLIT.text, "float32"),
        dtype=torch.float32,
        planes=2,
        products=3,
        rate=250e6,
        library=(28e6, 42e6, 5e6),
    ),
    _convolution(
        *("rounded", "ConvRoundedFloat", ROUNDED.text, "tf32"),
        dtype=torch.float32,
        rate=200e6,
        library=(20e6, 345e6, 74e6),
    ),
    _convolution(
        *("bfloat16", "ConvBfloat16", "bfloat16", ""),
        dtype=torch.bfloat16,
        rate=200e6,
        library=(40e6, 600e6, 150e6),
    ),
    _convolution(
        *("float16", "ConvFloat16", "float16", ""),
        dtype=torch.float16,
        rate=200e6,
        library=(40e6, 600e6, 150e6),
    ),
)

# From 34 convolutions in both orders (benchmarks/results/nvidia-h200-library-convolutions.md).
CONVOLUTIONS = LibraryConvolutions(
    turn_rate=3.4e6,
    depthwise_rate=0.8e6,
    depthwise_last_rate=2.8e6,
    store_rate=3.6e6,
    overhead=3.0,
    weight_overhead=4.0,
)

# Measured in us on an H200, float32, as boxes of windows: a depthwise 3x3 over 64 x 96 channels of
# 112 x 112 takes 159 (estimate 157), over 64 x 64 of 56 x 56 28 (29), a transposed one of 120 x 120
# 69 (64), 3x3x3 over 16 x 32 of 32 x 40 x 40 78 (79), 7x7 over 32 x 96 of 56 x 56 41 (42). The
# library took 582 for 64 x 64 channels of 112 x 112, by steps of two 164; 7 taps along 8192 places
# 446; groups of two channels 1260, of four 770.
SUMS = Sums(
    launch=3.0,
    memory=4.0e6,
    products=2.0e7,
    beside=31.0,
    loads=3.4e6,
    slower=2.1,
    tap=1.6e-6,
    largest=64,
)

# An H200: 4.8 TB/s and 67 TFLOP/s; a launch takes about two microseconds.
SM_90 = Target(
    "sm_90",
    "cuda",
    launch_bytes=8 << 20,
    flops_per_byte=12,
    lanes=Lanes(warp=32, most_threads=1024, floats=16, most_floats=32, blocks=264, cluster=8),
    loops=(SPLIT, ROUNDED, BFLOAT16, FLOAT16),
    conv_loops=CONV_LOOPS,
    attending=ATTENDING,
    convolutions=CONVOLUTIONS,
    sums=SUMS,
    majors=(9,),
)
