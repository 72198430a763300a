"""What a caller may give instead of the example: the same in other memory, or more samples."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


def plain(x: Tensor) -> Tensor:
    return x.detach().clone()


def transposed(x: Tensor) -> Tensor:
    """In the memory of the transpose."""
    order = list(reversed(range(x.ndim)))
    return x.permute(order).contiguous().permute(order).clone()


def expanded(x: Tensor) -> Tensor:
    """Its first places along the first axis that has several, again and again."""
    axis = next((d for d, size in enumerate(x.shape) if size > 1), None)
    return plain(x) if axis is None else x.narrow(axis, 0, 1).clone().expand_as(x)


def offset(x: Tensor) -> Tensor:
    """Inside of a larger tensor, not at its beginning."""
    larger = x.new_zeros([n + 2 for n in x.shape])
    return larger[tuple(slice(1, n + 1) for n in x.shape)].copy_(x)


def negated(x: Tensor) -> Tensor:
    """As its negative or its conjugate with torch's lazy bit, where the dtype can have one."""
    if x.is_complex():
        return x.detach().conj().resolve_conj().conj()
    return torch._neg_view(-x.detach()) if x.is_floating_point() else plain(x)


def doubled(x: Tensor) -> Tensor:
    """Twice as many samples, dense."""
    return torch.cat([x.detach(), x.detach()])


def dense(x: Tensor) -> Tensor:
    return x.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)


LAYOUTS = {f.__name__: f for f in (plain, transposed, expanded, offset, negated, doubled)}


def laid(given: Any, layout: str, differentiable: bool) -> Any:
    """A call's arguments in new memory."""
    change = dense if layout == "dense" else LAYOUTS[layout]
    sizes = [x.shape[0] for x in pytree.tree_leaves(given) if isinstance(x, Tensor) and x.ndim]

    def made(x: Tensor) -> Tensor:
        if x.layout is not torch.strided or x.is_quantized or x.is_nested:
            return x.detach().clone()
        kept = change is doubled and not (x.ndim and x.shape[0] == sizes[0])
        made = plain(x) if kept else change(x.detach()).detach()
        return made.requires_grad_() if differentiable and continuous(made) else made

    return pytree.tree_map_only(Tensor, made, given)


def continuous(x: Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()
