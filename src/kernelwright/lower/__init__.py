"""Regions become kernels, each a template, a schedule and a configuration, and steps of a call."""

from kernelwright.lower.attention import AttentionKernel, ScoreKernel
from kernelwright.lower.convolution import ConvKernel, conv_time
from kernelwright.lower.few import BesideKernel, DirectKernel, FewKernel, HostKernel, ThinKernel
from kernelwright.lower.gemm import Tile
from kernelwright.lower.kernel import GemmKernel, Kernel
from kernelwright.lower.lowered import Lowered, lower
from kernelwright.lower.panels import Panel
from kernelwright.lower.routines import Routine
from kernelwright.lower.steps import Frozen, Step
from kernelwright.lower.tail import TailKernel

__all__ = [
    "AttentionKernel",
    "BesideKernel",
    "ConvKernel",
    "DirectKernel",
    "FewKernel",
    "Frozen",
    "GemmKernel",
    "HostKernel",
    "Kernel",
    "Lowered",
    "Panel",
    "Routine",
    "ScoreKernel",
    "Step",
    "TailKernel",
    "ThinKernel",
    "Tile",
    "conv_time",
    "lower",
]
