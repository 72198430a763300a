"""Inputs that find mistakes: distributions, layouts and batch sizes.

In: a Subject. Out: Cases, which make the same inputs again from the same seed, so that every module
gets its own copy in the very same layout. The one idea: both tables map a tensor to a tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from kernelwright.verify.subject import Inputs, Subject

Transform = Callable[[Tensor], Tensor]
Layout = Callable[[Tensor], Tensor | None]


@dataclass(frozen=True)
class Case:
    """Named inputs; with contiguous ones the outputs must have eager's strides."""

    name: str
    make: Callable[[int], Inputs]
    strides: bool = True


def own(subject: Subject, batch: int | None = None) -> Case:
    """The file's own inputs, at the reduced batch unless told otherwise."""
    size = subject.small if batch is None else batch
    return Case(f"the file's own inputs at batch {size}", partial(subject.draw, size))


def distribution(subject: Subject, name: str) -> Case:
    """The file's inputs with every floating tensor drawn from, or changed by, a named rule."""
    transform = DISTRIBUTIONS[name]

    def make(seed: int) -> Inputs:
        def one(x: object) -> object:
            return transform(x) if isinstance(x, Tensor) and x.is_floating_point() else x

        inputs = subject.draw(subject.small, seed)
        torch.manual_seed(seed)
        changed: Inputs = pytree.tree_map(one, inputs)
        return changed

    return Case(f"{name} inputs at batch {subject.small}", make)


def layout(subject: Subject, name: str) -> Case | None:
    """The file's inputs in another memory layout, or None when no input can have it."""
    change = LAYOUTS[name]
    drawn = pytree.tree_leaves(subject.draw_all(0))
    if not any(isinstance(x, Tensor) and change(x) is not None for x in drawn):
        return None

    def one(x: object) -> object:
        changed = change(x) if isinstance(x, Tensor) else None
        return x if changed is None else changed

    def make(seed: int) -> Inputs:
        changed: Inputs = pytree.tree_map(one, subject.draw(subject.small, seed))
        return changed

    return Case(f"{name} inputs at batch {subject.small}", make, strides=False)


def _ties(x: Tensor) -> Tensor:
    return torch.randn_like(x).mul_(2).round_().clamp_(-2, 2).div_(2)


def _with_values(values: dict[float, float], x: Tensor) -> Tensor:
    """Overwrite single elements, each given by its relative position in the tensor."""
    changed = x.clone()
    for position, value in values.items():
        if x.numel():
            changed.view(-1)[int(position * (x.numel() - 1))] = value
    return changed


NAN, INF = float("nan"), float("inf")

DISTRIBUTIONS: dict[str, Transform] = {
    "normal": torch.randn_like,
    "1e4 times larger": lambda x: x * 1e4,
    "1e4 times smaller": lambda x: x * 1e-4,
    "offset by 100": lambda x: x + 100,
    "tied": _ties,
    "NaN": partial(_with_values, {0.15: NAN, 0.5: NAN, 1.0: NAN}),
    "infinite": partial(_with_values, {0.15: INF, 0.5: -INF, 0.9999: INF, 1.0: -INF}),
}


def _transposed(x: Tensor) -> Tensor | None:
    if x.ndim < 2 or min(x.shape[-2:]) < 2:
        return None
    return x.transpose(-1, -2).contiguous().transpose(-1, -2)


def _sliced(x: Tensor) -> Tensor | None:
    if x.ndim < 1:
        return None
    wide = x.new_empty((*x.shape[:-1], x.shape[-1] + 1))
    wide[..., 1:] = x
    return wide[..., 1:]


def _offset(x: Tensor) -> Tensor | None:
    flat = x.new_empty(x.numel() + 1)
    flat[1:] = x.reshape(-1)
    return flat[1:].view(x.shape)


def _expanded(x: Tensor) -> Tensor | None:
    return x[:1].expand_as(x) if x.ndim and x.shape[0] > 1 else None


def _channels_last(x: Tensor) -> Tensor | None:
    if x.ndim == 4:
        return x.contiguous(memory_format=torch.channels_last)
    if x.ndim == 5:
        return x.contiguous(memory_format=torch.channels_last_3d)
    return None


LAYOUTS: dict[str, Layout] = {
    "transposed": _transposed,
    "sliced": _sliced,
    "storage offset": _offset,
    "expanded": _expanded,
    "channels_last": _channels_last,
}
