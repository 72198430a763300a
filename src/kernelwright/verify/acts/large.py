"""Tensors of more than 2^31 elements, made where they are needed.

In: a module and a few rows of inputs. Out: what a row needs, and results of chosen rows. The rows
are repeated on the device, so that nothing large travels; a kernel whose index wraps around reads
or writes other rows, which are not repeated at any distance that it could be off by.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from kernelwright.verify.acts.here import Here
from kernelwright.verify.inputs import Inputs, Named, copied, forward, map_tensors, tensors_in


def footprint(module: nn.Module, inputs: Inputs, here: Here) -> Named:
    """The elements of the largest tensor, the bytes of all of them, and those that are free."""
    with _Made() as made:
        forward(module, copied(inputs))
    here.finish()
    sizes = [x.numel() for x in tensors_in(inputs)] + made.sizes
    given = sum(x.numel() * x.element_size() for x in tensors_in(inputs))
    free = torch.cuda.mem_get_info(here.device)[0] if here.device.type == "cuda" else 0
    return Named(
        {"largest": max(sizes, default=0), "bytes": given + sum(made.bytes), "free": int(free)}
    )


class _Made(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Every tensor that an operator of torch gives, whether it lives long or not."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: list[int] = []
        self.bytes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        for x in pytree.tree_leaves(results):
            if isinstance(x, Tensor):
                self.sizes.append(x.numel())
                self.bytes.append(x.numel() * x.element_size())
        return results


def of_rows(module: nn.Module, inputs: Inputs, here: Here, rows: list[int]) -> Any:
    """The results of the rows that are given, of which some are chosen, perhaps again and again."""
    return _chosen(forward(module, inputs), rows)


def of_many_rows(
    module: nn.Module, inputs: Inputs, here: Here, batch: int, resized: list[int], rows: list[int]
) -> Any:
    """The same of so many rows, the given ones over and over; memory is given up afterwards."""
    leaves, tree = pytree.tree_flatten(inputs)
    for index in resized:
        x = leaves[index]
        leaves[index] = x[torch.arange(batch, device=x.device) % len(x)]
    outputs = forward(module, pytree.tree_unflatten(leaves, tree))
    del leaves
    found = _chosen(outputs, rows)
    del outputs
    here.finish()
    if here.device.type == "cuda":
        torch.cuda.empty_cache()
    return found


def _chosen(outputs: Any, rows: list[int]) -> Any:
    return map_tensors(
        lambda x: x.index_select(0, torch.tensor(rows, device=x.device)) if x.ndim else x, outputs
    )
