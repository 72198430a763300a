"""The parameters and buffers of a module as a plain dict, and how to draw new ones.

In: a module. Out: a State, name -> tensor, that `write` copies into the original, the candidate and
the float64 oracle in place, so that big weights are never allocated twice.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

State = dict[str, Tensor]


def tensors(module: nn.Module) -> State:
    """All parameters and buffers by name, tied ones under each of their names."""
    found: State = dict(module.named_parameters(remove_duplicate=False))
    found.update(module.named_buffers(remove_duplicate=False))
    return found


def snapshot(module: nn.Module) -> State:
    return {name: value.detach().clone() for name, value in tensors(module).items()}


def snapshot_buffers(module: nn.Module) -> State:
    found = module.named_buffers(remove_duplicate=False)
    return {name: value.detach().clone() for name, value in found}


@torch.no_grad()
def write(module: nn.Module, state: State) -> None:
    """Copy every tensor of the state that the module has, cast to the module's own dtype."""
    for name, value in tensors(module).items():
        if name in state and state[name].shape == value.shape:
            value.copy_(state[name])


@torch.no_grad()
def write_buffers(module: nn.Module, state: State) -> None:
    for name, value in module.named_buffers(remove_duplicate=False):
        if name in state and state[name].shape == value.shape:
            value.copy_(state[name])


@torch.no_grad()
def randomised(module: nn.Module, initial: State, seed: int) -> State:
    """Random values for everything that starts at 0 or 1, fresh draws of the rest at its scale.

    The initial weight of a normalisation is all 1 and its bias 0: they hide mistakes.
    """
    torch.manual_seed(seed)
    drawn: dict[int, Tensor] = {}
    for name, parameter in module.named_parameters():
        drawn[id(parameter)] = _draw_parameter(initial[name])
    for name, buffer in module.named_buffers():
        drawn[id(buffer)] = _draw_buffer(name, initial[name])
    return {name: drawn[id(value)] for name, value in tensors(module).items()}


def _draw_parameter(value: Tensor) -> Tensor:
    if not value.is_floating_point():
        return value
    is_matrix = sum(size > 1 for size in value.shape) >= 2
    spread = float(value.std()) if is_matrix and value.numel() > 1 else 1.0
    return torch.randn_like(value).mul_(spread or 1.0)


def _draw_buffer(name: str, value: Tensor) -> Tensor:
    if name.endswith("running_mean"):
        return torch.randn_like(value)
    if name.endswith("running_var"):
        return torch.rand_like(value) + 0.5
    return value
