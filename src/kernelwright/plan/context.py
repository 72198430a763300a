"""What every pass reads and none changes: the machine, and what is asked of it."""

from __future__ import annotations

from dataclasses import dataclass

from kernelwright.plan.conv_seats import ConvTime
from kernelwright.plan.policy import Policy
from kernelwright.targets.target import Target


@dataclass(frozen=True)
class Context:
    """The machine to compile for, at a float32 matmul precision and for a typical batch.

    `tf32`: eager may round operands of convolutions. `conv_time` says what the kernel of a
    generated convolution takes (lower/ knows its tiles).
    """

    target: Target
    precision: str
    batch: int
    policy: Policy
    conv_time: ConvTime
    tf32: bool = False

    @property
    def on_gpu(self) -> bool:
        return self.target.lanes is not None
