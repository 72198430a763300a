"""Regions become kernels: a template, a schedule of the program, a configuration."""

from kernelwright.lower.gemm import Tile
from kernelwright.lower.kernel import GemmKernel, Kernel, lower
from kernelwright.lower.panels import Panel, panels

__all__ = ["GemmKernel", "Kernel", "Panel", "Tile", "lower", "panels"]
