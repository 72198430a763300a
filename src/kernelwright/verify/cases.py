"""Inputs that find mistakes: distributions, layouts and batch sizes.

In: a Subject. Out: Cases, which make the inputs of a numbered draw; every process gets its own copy
of them, in the very same layout. The one idea: both tables map a tensor to a tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from kernelwright.verify.inputs import Inputs, map_floating, map_tensors, seeded, tensors_in
from kernelwright.verify.subject import Subject

NORMAL, MIXED, WHOLE = "normal", "of mixed sizes", "zeros and ones"
SIZES = 4

Transform = Callable[[Tensor], Tensor]
Relaid = Callable[[Tensor], Tensor | None]


@dataclass(frozen=True)
class Case:
    """Named inputs; `must_raise` where the candidate may accept no more than the original does.

    `strides` tells whether those of the outputs must be eager's; where `dense`, candidates may keep
    the layout of their inputs although eager's kernel happens to return contiguous memory. Where
    `by_group`, slices of the outputs are judged as well: for inputs as people have them. Extreme
    ones leave slices of next to nothing, of which a right candidate need not be a good part.
    """

    name: str
    make: Callable[[int], Inputs]
    strides: bool = True
    must_raise: bool = False
    dense: bool = False
    by_group: bool = False


def own(subject: Subject, batch: int | None = None) -> Case:
    """The file's own inputs, at the reduced batch unless told otherwise."""
    size = subject.small if batch is None else batch
    name = f"the file's own inputs at batch {size}"
    return Case(name, partial(subject.draw, size), by_group=True)


def renamed(case: Case, name: str) -> Case:
    return replace(case, name=name)


def distribution(subject: Subject, name: str) -> Case:
    """The file's inputs with every floating tensor drawn from, or changed by, a named rule."""
    transform = DISTRIBUTIONS[name]

    def make(draw: int) -> Inputs:
        inputs = subject.draw(subject.small, draw)
        with seeded(subject.job.number("distribution", name, draw)):
            return map_floating(transform, inputs)

    by_group = name == NORMAL
    return Case(f"{name} inputs at batch {subject.small}", make, by_group=by_group)


def layout(subject: Subject, name: str) -> Case | None:
    """The file's inputs in another memory layout, or None when no input can have it."""
    change = LAYOUTS[name]
    if all(change(x) is None for x in tensors_in(subject.draw_all(0))):
        return None

    def one(x: Tensor) -> Tensor:
        changed = change(x)
        return x if changed is None else changed

    def make(draw: int) -> Inputs:
        return map_tensors(one, subject.draw(subject.small, draw))

    return Case(f"{name} inputs at batch {subject.small}", make, dense=True, by_group=True)


def together(case: Case, count: int, first: int = 0) -> Case:
    """Several draws of a case as the arguments of one act."""

    def make(draw: int) -> Inputs:
        start = first + count * draw
        return Inputs(tuple(case.make(start + i) for i in range(count)), {})

    return Case(f"{count} of {case.name}", make, case.strides)


def _ties(x: Tensor) -> Tensor:
    return torch.randn_like(x).mul_(2).round_().clamp_(-2, 2).div_(2)


def _with_values(values: dict[float, float], x: Tensor) -> Tensor:
    """Overwrite single elements, each given by its relative position in the tensor."""
    changed = x.clone()
    for position, value in values.items():
        if x.numel():
            changed.view(-1)[int(position * (x.numel() - 1))] = value
    return changed


def _denormal(x: Tensor) -> Tensor:
    """Numbers below the smallest normal one, a few of their own spacings large."""
    limits = torch.finfo(x.dtype)
    spacing = limits.tiny * limits.eps
    steps = min(1 / limits.eps, 2**20)
    return torch.randn_like(x).mul_(steps / 4).round_().mul_(spacing).to(x.dtype)


def _mixed(x: Tensor) -> Tensor:
    """Each row a hundred times larger or smaller than the next, over SIZES rows."""
    if x.ndim < 2:
        return x
    powers = torch.arange(x.shape[0], device=x.device).remainder(SIZES).sub(2).mul(2)
    scale = torch.pow(10.0, powers.double()).to(x.dtype)
    return torch.randn_like(x) * scale.view(-1, *[1] * (x.ndim - 1))


NAN, INF = float("nan"), float("inf")

DISTRIBUTIONS: dict[str, Transform] = {
    NORMAL: torch.randn_like,
    "1e4 times larger": lambda x: x * 1e4,
    "1e4 times smaller": lambda x: x * 1e-4,
    "offset by 100": lambda x: x + 100,
    "tied": _ties,
    WHOLE: lambda x: torch.randint_like(x, 0, 2),
    "denormal": _denormal,
    MIXED: _mixed,
    "zero": torch.zeros_like,
    "NaN": partial(_with_values, {0.15: NAN, 0.5: NAN, 1.0: NAN}),
    "infinite": partial(_with_values, {0.15: INF, 0.5: -INF, 0.9999: INF, 1.0: -INF}),
}


def _transposed(x: Tensor) -> Tensor | None:
    if x.ndim < 2 or min(x.shape[-2:]) < 2:
        return None
    return x.transpose(-1, -2).contiguous().transpose(-1, -2)


def _permuted(x: Tensor) -> Tensor | None:
    """All dimensions in memory the other way round: another thing than transposed from 3 on."""
    order = tuple(reversed(range(x.ndim)))
    return x.permute(order).contiguous().permute(order) if x.ndim >= 3 else None


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


LAYOUTS: dict[str, Relaid] = {
    "transposed": _transposed,
    "permuted": _permuted,
    "sliced": _sliced,
    "storage offset": _offset,
    "expanded": _expanded,
    "channels_last": _channels_last,
}
