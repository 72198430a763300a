"""Any processor with a C++ compiler and OpenMP: rows that stay in the cache of a core."""

from __future__ import annotations

import torch

from kernelwright.targets.target import CoreAttending, LibraryConvolutions, Sums, Target

# A parallel region of OpenMP takes a few microseconds, and a core moves some 10 bytes a nanosecond.
# In that time it does some 20 of the operations that functions are counted in (GELU, which counts
# as 22, takes 2.6 ns on a Xeon with AVX-512).
# One core of a Xeon with AVX-512, 3x3 depthwise at batch 8, the library's time over that of sums:
# 6.0 at 56 x 56, 7.5 at 112 x 112, 1.5 by steps of two; 0.7 at 14 x 14, 0.3 for windows of 5 x 5.
SUMS = Sums(
    launch=5.0,
    memory=1.0e4,
    products=5.3e3,
    beside=0.0,
    loads=6.6e3,
    slower=3.0,
    tap=1.0e-2,
    largest=9,
    fewest=32,
)
# Twelve convolutions in two dimensions in both orders, on two cores of a Neoverse N1: with the
# channels last they take 0.22 to 0.96 of the time, whichever order their weights have. 3x3 of 8 to
# 64 channels over 128 x 128 takes 10.2 ms and not 22.3, since ATen turns the result in 10.3
# (tiled.hpp in 2.0). On four cores of a Xeon with AVX-512 they take 0.18 to 0.94. In three
# dimensions it is 0.55 to 1.26, and 0.5 to 1.17.
CONVOLUTIONS = LibraryConvolutions(
    turn_rate=4.0e3,
    depthwise_rate=3.0e3,
    depthwise_last_rate=1.2e4,
    store_rate=1.6e4,
    overhead=5.0,
    weight_overhead=0.0,
    alike=True,
    ranks=(4,),
)
ATTENDING = CoreAttending(
    "cores",
    "float32",
    torch.float32,
    launch=3.0,
    rate=1.2e5,
    scores=1.0e3,
    step=6.0,
    library=9.0e4,
    memory=1.0e4,
    widest=256,
)
CPU = Target(
    "cpu",
    "cpu",
    launch_bytes=1 << 17,
    flops_per_byte=2,
    row_elements=1 << 18,
    convolutions=CONVOLUTIONS,
    sums=SUMS,
    attending=(ATTENDING,),
)
