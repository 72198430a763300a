"""An x86-64 processor, where oneDNN generates the library's convolutions as they are needed.

The other figures are those of any processor (cpu.py).
"""

from __future__ import annotations

from dataclasses import replace

from kernelwright.targets.cpu import CONVOLUTIONS, CPU
from kernelwright.targets.target import MANY, HostWay, HostWays

# Fifty convolutions at batch 4 in both orders, two cores of a Xeon with AVX-512 (Cascade Lake).
# What oneDNN turns costs it less than ATen's copies cost on AArch64: it moves 5 to 12 bytes of
# operand and result a nanosecond, but 1.5 in a transposed convolution by steps (13.5 ms with the
# channels first, 4.9 with them last). In three dimensions channels_last takes 0.12 to 0.84 of the
# time. Kernels of ours that turn move 3 to 5; what is scattered takes twice what is gathered.
# Float64 is not oneDNN's: 32 to 64 channels over 64 x 64 by steps of two, which are left of a
# convolution and its average pool, take 31 ms, and the float32 convolution without steps 14.
# Windows of one place with the channels first leave one of two cores idle: 64 to 128 channels over
# 56 x 56 take 3.0 ms, with them last 1.9, as a product of matrices 1.6 (docs/layouts.md).
HOST = HostWays(
    (
        HostWay("amx_bf16", "AMX", 3, MANY, weight=1 << 17, deep=256, work=1 << 22),
        HostWay("avx512f", "AVX-512", 3, 16, weight=1 << 18, deep=256, along=True),
    ),
    precisions=("highest",),
)
X86_64 = replace(
    CPU,
    name="x86_64",
    convolutions=replace(
        CONVOLUTIONS,
        turn_rate=1.3e4,
        transposed_rate=3.0e3,
        store_rate=6.0e3,
        scattered=2.0,
        ranks=(4, 5),
        minds_one=True,
        in_double=False,
        pixels_as_products=True,
    ),
    host=HOST,
)
