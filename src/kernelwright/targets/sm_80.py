"""Any GPU from Ampere on: the row kernels, and the library's products."""

from __future__ import annotations

from kernelwright.targets.target import Lanes, Target

# An A100 reads 2 TB/s and computes 19.5 TFLOP/s; a launch takes about two microseconds.
SM_80 = Target(
    "sm_80",
    "cuda",
    launch_bytes=4 << 20,
    flops_per_byte=10,
    lanes=Lanes(warp=32, most_threads=1024, floats=16, most_floats=32, blocks=216),
    majors=(8,),
)
