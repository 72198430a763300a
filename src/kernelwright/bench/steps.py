"""A training step as something to time: forward, a loss over all results, and the backward.

In: a module and sets of inputs. Out: a Variant whose calls are steps. Gradients are dropped after
each, as `zero_grad` does, so that the next one allocates them again.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import torch
from torch import nn

from kernelwright.bench.inputs import InputSets
from kernelwright.bench.timings import Timing
from kernelwright.bench.variants import Variant, brief, warm
from kernelwright.verify.inputs import Inputs, forward, tensors_in

STEP = " step"  # behind the name of a variant
NOTHING_ASKS = "nothing in the model asks for a gradient"


def is_step(name: str) -> bool:
    return name.endswith(STEP)


def prepare_step(
    name: str, module: nn.Module, run: nn.Module, sets: InputSets, warmups: int
) -> Variant | Timing:
    """Steps of a module, or of what torch.compile made of it; a note where there is none."""
    if not any(p.requires_grad for p in module.parameters()):
        return Timing(name, note=NOTHING_ASKS)
    calls = tuple(functools.partial(training_step, module, run, inputs) for inputs in sets)
    variant = Variant(name, calls)
    try:
        warm(variant, warmups)
    except Exception as error:
        return Timing(name, note=f"a training step failed: {brief(error, 90)}")
    return variant


def training_step(module: nn.Module, run: nn.Module, inputs: Inputs) -> torch.Tensor:
    """The loss, without a graph behind it."""
    with torch.enable_grad():
        loss = loss_of(tensors_in(forward(run, inputs)))
        loss.backward()  # type: ignore[no-untyped-call]
    for parameter in module.parameters():
        parameter.grad = None
    return loss.detach()


def loss_of(results: Iterable[torch.Tensor]) -> torch.Tensor:
    """The mean square of every result that a gradient can come from."""
    flowing = [x for x in results if x.requires_grad]
    if not flowing:
        raise ValueError("no result depends on a parameter")
    return torch.stack([x.square().mean().float() for x in flowing]).sum()
