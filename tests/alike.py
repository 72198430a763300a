"""What two models have in common besides their values, down to what autograd knows of each tensor.

In: results of any structure, ours and eager's. Out: the first difference, as text. A gradient that
eager does not give is None, and None is a value like any other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn


def parts(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Every container by the name of its class and every leaf, each with its place."""
    inside: dict[str, Any]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        inside = {f".{f.name}": getattr(value, f.name) for f in dataclasses.fields(value)}
    elif isinstance(value, dict):
        inside = {f"[{key!r}]": part for key, part in value.items()}
    elif isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        inside = {f"[{i}]": part for i, part in enumerate(value)}
    else:
        yield place, value
        return
    yield place, type(value).__name__
    for name, part in inside.items():
        yield from parts(part, place + name)


def tensors(value: Any) -> list[Tensor]:
    return [part for _, part in parts(value) if isinstance(part, Tensor)]


def difference(ours: Any, theirs: Any, laid_out: bool = True) -> str | None:
    """The first thing that is not as in eager, but for the elements of tensors.

    Where results need not be `laid_out` as eager's, their strides are no matter.
    """
    left, right = list(parts(ours)), list(parts(theirs))
    if [place for place, _ in left] != [place for place, _ in right]:
        return f"{list(dict(left))} instead of {list(dict(right))}"
    for (place, mine), (_, other) in zip(left, right, strict=True):
        found, wanted = _told(mine, laid_out), _told(other, laid_out)
        for what in found | wanted:
            if found.get(what) != wanted.get(what):
                return f"{place} {what}: {found.get(what)} instead of {wanted.get(what)}".strip()
    return None


def _told(value: Any, laid_out: bool) -> dict[str, Any]:
    if not isinstance(value, Tensor):
        return {"value": f"{type(value).__name__} {value!r}"}
    found = {
        "class": type(value).__name__,
        "shape": tuple(value.shape),
        "type": value.dtype,
        "layout": value.layout,
        "device": value.device,
        "requires_grad": value.requires_grad,
        "has a grad_fn": value.grad_fn is not None,
        "is conjugated lazily": value.is_conj(),
        "is negated lazily": value.is_neg(),
    }
    return found | {"strides": strides(value)} if laid_out else found


def strides(tensor: Tensor) -> list[int]:
    """The strides that matter: those of axes with more than one element, if there are several."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return []
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return [stride for size, stride in pairs if size > 1] if tensor.numel() > 1 else []


def aliases(outputs: Any, inputs: Any) -> list[list[bool]]:
    """Which outputs lie in the memory of which inputs, and of which other outputs."""
    made = tensors(outputs)
    homes = [tensor.untyped_storage().data_ptr() for tensor in (*tensors(inputs), *made)]
    return [[home == other for other in homes] for home in homes[len(homes) - len(made) :]]


def gradients(module: nn.Module, outputs: Any, given: Any) -> dict[str, Tensor | None]:
    """Of arguments and parameters, for cotangents that are others for each output."""
    generator = torch.Generator().manual_seed(13)
    roots = [y for y in tensors(outputs) if y.requires_grad]
    cotangents = [_cotangent(y, generator) for y in roots]
    if roots:
        torch.autograd.backward(roots, cotangents)
    found = {f"argument {i}": x.grad for i, x in enumerate(tensors(given))}
    return found | {name: p.grad for name, p in module.named_parameters()}


def _cotangent(y: Tensor, generator: torch.Generator) -> Tensor:
    if y.is_complex():
        return torch.view_as_complex(torch.randn(*y.shape, 2, generator=generator)).to(y)
    return torch.randn(y.shape, generator=generator).to(y)


def required(given: Any) -> None:
    """From here on, gradients of all these arguments are asked for."""
    for x in tensors(given):
        x.requires_grad_(x.is_floating_point() or x.is_complex())
