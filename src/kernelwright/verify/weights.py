"""Other weights for a model, drawn by the judge from what it knows of the first ones.

In: the tensors of a model by name, and which of them are one tensor under two names. Out: a State
of the same names, that goes to all three modules as data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernelwright.graph import is_differentiable
from kernelwright.verify.inputs import seeded
from kernelwright.verify.parameters import State

EXPONENTS, HALF_EXPONENTS = (0, 3, -4, -8, -32), (0, 1, -1, -2, -3)  # of ten


@dataclass(frozen=True)
class Names:
    """The parameters and buffers of a model; `tied` gives each name the first of its tensor."""

    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    tied: dict[str, str]


def randomised(names: Names, initial: State, seed: int) -> State:
    """Random values for everything that starts at 0 or 1, fresh draws of the rest at its scale.

    The initial weight of a normalisation is all 1 and its bias 0: they hide mistakes.
    """
    return _drawn(names, initial, seed, _draw_parameter)


def whole(names: Names, initial: State, seed: int) -> State:
    """Small whole numbers for parameters: sums of products of such numbers are exact."""
    return _drawn(names, initial, seed, _draw_whole)


def mixed(names: Names, state: State, seed: int) -> State:
    """The same with rows of sizes from next to nothing to thousands.

    Parameters of as many rows have equal sizes: a small row of a weight has a small bias.
    """

    def resize(x: Tensor) -> Tensor:
        if not x.ndim:
            return x
        exponents = HALF_EXPONENTS if x.dtype == torch.float16 else EXPONENTS
        return x * _sizes(x.shape[0], exponents, seed).to(x).view(-1, *(1,) * (x.ndim - 1))

    return _changed(names, state, seed, resize)


def _sizes(rows: int, exponents: Sequence[int], seed: int) -> Tensor:
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed + rows))
    return 10.0 ** torch.tensor(exponents, dtype=torch.float64)[order % len(exponents)]


def _drawn(
    names: Names, initial: State, seed: int, draw_parameter: Callable[[Tensor], Tensor]
) -> State:
    drawn: State = {}
    with seeded(seed):
        for name in names.parameters:
            if names.tied[name] == name:
                drawn[name] = draw_parameter(initial[name])
        for name in names.buffers:
            if names.tied[name] == name:
                drawn[name] = _draw_buffer(name, initial[name])
    return {name: drawn[names.tied[name]] for name in initial}


def _changed(names: Names, state: State, seed: int, change: Callable[[Tensor], Tensor]) -> State:
    changed = dict(state)
    with seeded(seed):
        for name in names.parameters:
            if names.tied[name] == name and is_differentiable(state[name].dtype):
                changed[name] = change(state[name])
    return {name: changed[names.tied[name]] for name in state}


def _draw_parameter(value: Tensor) -> Tensor:
    if not is_differentiable(value.dtype):
        return value
    is_matrix = sum(size > 1 for size in value.shape) >= 2
    spread = float(value.std()) if is_matrix and value.numel() > 1 else 1.0
    return torch.randn_like(value).mul_(spread or 1.0)


def _draw_whole(value: Tensor) -> Tensor:
    return torch.randint_like(value, -2, 3) if value.is_floating_point() else value


def _draw_buffer(name: str, value: Tensor) -> Tensor:
    if name.endswith("running_mean"):
        return torch.randn_like(value)
    if name.endswith("running_var"):
        return torch.rand_like(value) + 0.5
    return value


# The states that checks name, beside the initial one, and what each is drawn from.
DRAWN: dict[str, tuple[str, Callable[[Names, State, int], State]]] = {
    "random": ("initial", randomised),
    "whole": ("initial", whole),
    "mixed": ("random", mixed),
}
