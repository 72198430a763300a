"""The least time a problem can take on a known machine; a measurement below it is not believed.

In: what must be computed (flops of the contractions) and moved (inputs, parameters and outputs,
once each), and the precision claimed. Out: a Floor. Peaks are ceilings that nothing exceeds, so
that an honest kernel is never refused: datasheet figures for a dense product, and for float32 on
tensor cores a third of the half-precision peak, since three products are the least that keep
float32's accuracy. TF32's accuracy needs one: float16 has its 11 bits, and rows can be scaled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from kernelwright.problem import Problem
from kernelwright.verify.inputs import Inputs, forward

WINOGRAD = 4.0  # the most that transforms in common use save on a convolution's flops


@dataclass(frozen=True)
class Machine:
    """Ceilings in bytes and floating point operations per second."""

    bandwidth: float
    flops: dict[str, float]


MACHINES = {
    "NVIDIA H200": Machine(
        bandwidth=4.8e12,
        flops={"highest": 330e12, "high": 990e12, "medium": 990e12, "half": 990e12},
    ),
}


@dataclass(frozen=True)
class Work:
    """What a call cannot avoid."""

    flops: float
    bytes: int
    convolves: bool


@dataclass(frozen=True)
class Floor:
    ms: float | None
    why: str


def count_work(
    problem: Problem, module: nn.Module, inputs: Inputs, saved: float = WINOGRAD
) -> Work:
    """Run the eager module once and count; a convolution may need `saved` times fewer flops."""
    with FlopCounterMode(display=False) as counter:
        output = forward(module, inputs)
    by_operator = counter.get_flop_counts().get("Global", {})
    counts = {str(operator): n for operator, n in by_operator.items()}
    flops = sum(n / (saved if "conv" in name else 1.0) for name, n in counts.items())
    moved = [*tensors(inputs), *tensors(output), *needed_parameters(problem.module)]
    return Work(flops, sum(distinct_bytes(t) for t in moved), any("conv" in c for c in counts))


def needed_parameters(module: nn.Module) -> Iterator[torch.Tensor]:
    """Every parameter, save lookup tables, of which a call may read a few rows only."""
    for part in module.modules():
        if not isinstance(part, nn.Embedding | nn.EmbeddingBag):
            yield from part.parameters(recurse=False)


def floor(problem: Problem, work: Work, machine_name: str) -> Floor:
    """The larger of the time to compute and the time to move."""
    return floor_at(work, claimed_level(problem, work), machine_name)


def floor_at(work: Work, level: str, machine_name: str) -> Floor:
    """The same, for the fastest arithmetic that is allowed."""
    machine = next((m for name, m in MACHINES.items() if machine_name.startswith(name)), None)
    if machine is None:
        return Floor(None, f"no peaks are on record for {machine_name}")
    compute = work.flops / machine.flops[level] * 1e3
    memory = work.bytes / machine.bandwidth * 1e3
    bound = f"{work.flops / 1e9:.1f} GFLOP at {machine.flops[level] / 1e12:.0f} TFLOP/s ({level})"
    if memory > compute:
        bound = f"{work.bytes / 1e6:.1f} MB at {machine.bandwidth / 1e12:.1f} TB/s"
    return Floor(max(compute, memory), bound)


def claimed_level(problem: Problem, work: Work) -> str:
    """The fastest arithmetic that the problem's precision allows anywhere in it."""
    kinds = {p.dtype for p in problem.module.parameters()}
    kinds |= {t.dtype for t in problem.tensors}
    if kinds & {torch.float16, torch.bfloat16}:
        return "half"
    if problem.precision == "highest" and work.convolves and problem.conv_tf32:
        return "high"
    return problem.precision


def tensors(value: object) -> list[torch.Tensor]:
    """All tensors in nested lists, tuples and dictionaries."""
    if isinstance(value, torch.Tensor):
        return [value]
    items: Iterable[object] = ()
    if isinstance(value, list | tuple):
        items = value
    elif isinstance(value, dict):
        items = value.values()
    return [t for item in items for t in tensors(item)]


def distinct_bytes(tensor: torch.Tensor) -> int:
    """Bytes of a tensor, counting the elements of an expanded one once."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())
