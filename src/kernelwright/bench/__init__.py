"""Model file and candidate file in, Timings out: what a user would run otherwise, timed fairly."""

from kernelwright.bench.runner import bench
from kernelwright.bench.timings import Timing, Timings

__all__ = ["Timing", "Timings", "bench"]
