"""What forward is given: positional and keyword inputs, nested as the model's file nests them.

In: whatever `get_inputs()` returned. Out: Inputs, a tuple of two that pytree functions reach into,
so that drawing, resizing and widening are written once for every nesting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from kernelwright.structures import in_classes_of, neutral, register, tensors


class Inputs(NamedTuple):
    """The arguments of one call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Named(dict[str, Any]):
    """What an act returns that observes more than outputs; findings name the keys."""


pytree.register_pytree_node(
    Named, lambda d: (list(d.values()), list(d)), lambda v, k: Named(zip(k, v, strict=True))
)

Tree = TypeVar("Tree")

# What numbers are moved by for another sample of eager's error. A long sum whose terms differ in
# the last bit keeps nearly all of its rounding error: such runs share their luck.
SHAKEN = 2.0**-10


def forward(module: nn.Module, inputs: Inputs) -> Any:
    """One call; dataclasses and named tuples are those of the module's own file on the way in."""
    args, kwargs = in_classes_of(module, (inputs.args, inputs.kwargs))
    return neutral(module(*args, **kwargs))


def on_device(inputs: Inputs, device: torch.device) -> Inputs:
    return map_tensors(lambda x: x.to(device), inputs)


def taken(inputs: Inputs, device: torch.device) -> Inputs:
    """The tensors of a message as a user has them: on the device, in memory of their own."""
    return map_tensors(_own, inputs) if device.type == "cpu" else on_device(inputs, device)


def _own(x: Tensor) -> Tensor:
    """A copy in the very same layout, which a clone of strided memory would not have."""
    count = x.untyped_storage().nbytes() // x.element_size()
    memory = x.as_strided((count,), (1,), 0).clone()
    return memory.as_strided(x.shape, x.stride(), x.storage_offset())


def widen(inputs: Inputs) -> Inputs:
    """Every floating tensor in float64."""
    return map_tensors(wide, inputs)


def wide(x: Tensor) -> Tensor:
    if x.is_complex():
        return x.to(torch.complex128)
    return x.double() if x.is_floating_point() else x


def map_tensors(function: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    """A function of tensors over every tensor in a tree; all else stays."""
    register(tree)
    mapped: Tree = pytree.tree_map(lambda x: function(x) if isinstance(x, Tensor) else x, tree)
    return mapped


def map_floating(function: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    return map_tensors(lambda x: function(x) if x.is_floating_point() else x, tree)


def shaken(x: Tensor) -> Tensor:
    """Every number off by up to a thousandth."""
    by = max(SHAKEN, torch.finfo(x.dtype).eps)
    return torch.rand_like(x).sub_(0.5).mul_(2 * by).add_(1).mul_(x)


def copied(inputs: Inputs) -> Inputs:
    """Copies, for a module that may write to what it is given."""
    return map_tensors(Tensor.clone, inputs)


def tensors_in(tree: Any) -> list[Tensor]:
    return tensors(tree)


def with_size(x: Tensor, dim: int, size: int) -> Tensor:
    """The first entries along a dimension, or for a larger one new ones drawn from all elements."""
    if size <= x.shape[dim]:
        return x.narrow(dim, 0, size).clone()
    shape: Sequence[int] = [*x.shape[:dim], size, *x.shape[dim + 1 :]]
    flat = x.reshape(-1)
    return flat[torch.randint(flat.numel(), tuple(shape), device=x.device)]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Torch's own generator at a seed, and afterwards where it was."""
    with torch.random.fork_rng(devices=[]):
        set_seed(seed)
        yield


def set_seed(seed: int) -> None:
    """torch.manual_seed for the devices that models can be on.

    That one writes down the stack for each kind of device which is not in use, a millisecond each
    time, and there are a thousand times in a certificate.
    """
    torch.default_generator.manual_seed(seed)
    if torch.version.cuda or torch.version.hip:
        torch.cuda.manual_seed_all(seed)
