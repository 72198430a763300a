"""Kernels and a plan become the text of one Python file."""

from kernelwright.emit.module import emit

__all__ = ["emit"]
