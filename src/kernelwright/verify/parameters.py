"""The parameters and buffers of a module as a plain dict, and how to draw new ones.

In: a module. Out: a State, name -> tensor, that `write` copies into the original, the candidate and
the float64 oracle in place, so that big weights are never allocated twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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


def _same(x: Tensor) -> Tensor:
    return x


@contextmanager
def types_kept(module: nn.Module, rounded_to: torch.dtype | None = None) -> Iterator[None]:
    """The data of all tensors as it was; inside of the block perhaps rounded to another type."""
    kept = [(x, x.data) for x in tensors(module).values()]
    for x, data in kept:
        if rounded_to is not None and x.is_floating_point():
            x.data = data.to(rounded_to).to(data.dtype)
    try:
        yield
    finally:
        for (x, data), now in zip(kept, tensors(module).values(), strict=True):
            x.data = data
            now.data = data
        # As .float() would: a recurrence keeps its tensors in a list.
        module._apply(_same)  # type: ignore[no-untyped-call]
