"""Where a tensor that is neither parameter nor buffer is found again: as an attribute or a global.

In: the module. Out: for each such tensor a Python expression, in which `{}` stands for the module:
`{}.scale`, `{}.tables["a"][0]`, `Model.forward.__globals__["TABLE"]`. What has no place was made by
the forward itself, and its value is part of the program.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from kernelwright.runtime.tensors import is_ordinary

Look = tuple[int, torch.dtype, torch.Size, tuple[int, ...]]
TABLES = ("_parameters", "_buffers", "_modules")


def find_places(module: nn.Module) -> dict[Look, str]:
    """Expressions by how the tensor looks at its memory; an attribute goes before a global."""
    found: dict[Look, str] = {}
    owners = [(_expression(path), owner) for path, owner in module.named_modules()]
    for text, owner in owners:
        for name, value in vars(owner).items():
            if name not in TABLES:
                _note(found, value, f"{text}.{name}")
    for text, owner in owners:
        kind = "Model" if owner is module else f"type({text})"
        for name, value in _globals(type(owner)).items():
            if not isinstance(value, nn.Module):
                _note(found, value, f'{kind}.forward.__globals__["{name}"]')
    return found


def look_of(tensor: torch.Tensor) -> Look:
    """What two tensors that are one have in common: a part of another begins where that does."""
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def is_place(target: str) -> bool:
    """Whether this is an expression from here, and not the path of a parameter or a buffer."""
    return "{}" in target or "[" in target


def look_up(module: nn.Module, place: str) -> torch.Tensor:
    """The tensor at a place that `find_places` gave."""
    known = {"module": module, "Model": type(module)}
    found = eval(place.replace("{}", "module"), known)
    assert isinstance(found, torch.Tensor)
    return found


def _expression(path: str) -> str:
    parts = path.split(".") if path else []
    return "{}" + "".join(f".{p}" if p.isidentifier() else f"._modules[{p!r}]" for p in parts)


def _globals(kind: type[nn.Module]) -> dict[str, Any]:
    """What the forward of a user's class sees in its file."""
    space: dict[str, Any] = getattr(kind.forward, "__globals__", {})
    return {} if kind.__module__.startswith("torch.") else space


def _note(found: dict[Look, str], value: Any, place: str) -> None:
    for tensor, inside in _tensors(value, place):
        if is_ordinary(tensor) and tensor.numel() and tensor.device.type != "meta":
            found.setdefault(look_of(tensor), inside)


def _tensors(value: Any, place: str, depth: int = 3) -> Iterator[tuple[torch.Tensor, str]]:
    if isinstance(value, torch.Tensor):
        yield value, place
    elif isinstance(value, list | tuple) and depth:
        for i, item in enumerate(value):
            yield from _tensors(item, f"{place}[{i}]", depth - 1)
    elif isinstance(value, dict) and depth:
        for key, item in value.items():
            if isinstance(key, str | int):
                yield from _tensors(item, f"{place}[{key!r}]", depth - 1)
