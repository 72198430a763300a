"""Regions become kernels: a template, a schedule of the program, a configuration."""

from kernelwright.lower.kernel import Kernel, lower

__all__ = ["Kernel", "lower"]
