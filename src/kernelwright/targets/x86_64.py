"""An x86-64 processor, where oneDNN generates the library's convolutions as they are needed.

The other figures are those of any processor (cpu.py).
"""

from __future__ import annotations

from dataclasses import replace

from kernelwright.targets.cpu import CONVOLUTIONS, CPU
from kernelwright.targets.target import MANY, HostWay, HostWays, SmallConvolutions

# Fifty convolutions at batch 4 in both orders, two cores of a Xeon with AVX-512 (Cascade Lake).
# What oneDNN turns costs it less than ATen's copies cost on AArch64: it moves 5 to 12 bytes of
# operand and result a nanosecond, but 1.5 in a transposed convolution by steps (13.5 ms with the
# channels first, 4.9 with them last). In three dimensions channels_last takes 0.12 to 0.84 of the
# time. Kernels of ours that turn move 3 to 5; what is scattered takes twice what is gathered.
# Float64 is not oneDNN's: 32 to 64 channels over 64 x 64 by steps of two, which are left of a
# convolution and its average pool, take 31 ms, and the float32 convolution without steps 14.
# Windows of one place with the channels first leave one of two cores idle: 64 to 128 channels over
# 56 x 56 take 3.0 ms, with them last 1.9, as a product of matrices 1.6 (docs/layouts.md).
# 200 products of 1 to 512 rows, 64 to 8192 deep and wide, log-uniform, on two cores of a Xeon with
# AMX, against ATen (benchmarks/cpu_products.py --always --spread log). By dots, 4 to 16 rows: 0.99
# to 2.4 times as fast from these sizes on; 1 to 3 rows, which take as long as reading the weight,
# 0.93 to 1.05 (2 and 3 rows 1.01 to 1.03 where it is 4096 x 4096 or 8192 x 8192, one row 1.00);
# small weights 0.5 to 0.9. In thirds on AMX 1.03 to 1.7 with enough work; 0.7 to 1.1
# where few columns (549 of depth 5317: 0.85) or a short depth leave more to packing than to
# multiplying. At `medium` the library may round.
HOST = HostWays(
    (
        HostWay(
            *("avx512f", "AVX-512", 4, 16),
            columns=64,
            depth=96,
            weight=1 << 17,
            along=True,
            slack=1.2,
        ),
        HostWay("avx512f", "AVX-512", 2, 3, columns=64, depth=96, weight=1 << 24, along=True),
        HostWay("amx_bf16", "AMX", 17, MANY, columns=576, depth=256, work=24 << 20),
    ),
    precisions=("highest",),
)
# A large weight is turned at 5 to 9 bytes a nanosecond more slowly for channels_last: 3x3, 512 to
# 512 channels over 2 x 2, two samples: 0.9 ms with the channels first, 2.1 with them last; 256 to
# 256 over 4 x 4: 0.4 and 0.7 (Sapphire Rapids).
# Thirteen small convolutions at batch 1, 2, 3 and 8 on two cores of a Xeon (Sapphire Rapids): the
# library takes 34 to 60 us for any of them, 8 for a single sample that it unfolds, and makes 320
# operations a nanosecond with all it has; ours takes 3 us and makes 180 to 240. (3x3, 16 to 16
# channels over 16 x 16, three samples: 28 us and 53; 64 to 64: 345 and 303.)
SMALL = SmallConvolutions(
    launch=3.0,
    memory=1.0e4,
    rate=2.1e5,
    filters=6,
    library=33.0,
    alone=7.0,
    library_rate=3.2e5,
)
X86_64 = replace(
    CPU,
    name="x86_64",
    small=SMALL,
    convolutions=replace(
        CONVOLUTIONS,
        turn_rate=1.3e4,
        transposed_rate=3.0e3,
        store_rate=6.0e3,
        scattered=2.0,
        ranks=(4, 5),
        weight_rate=8.0e3,
        minds_one=True,
        in_double=False,
        pixels_as_products=True,
    ),
    host=HOST,
)
