"""Any GPU from Ampere on: the row kernels, and the library's products."""

from __future__ import annotations

from kernelwright.targets.target import Lanes, Target

SM_80 = Target("sm_80", "cuda", lanes=Lanes(warp=32, most_threads=1024, floats=16, most_floats=32))
