"""Where a tensor that is neither parameter nor buffer is found again: as an attribute or a global.

In: the module. Out: for each such tensor a Python expression. `.scale` and `.tables["a"][0]` are
behind the module; anything else is a name of the file that the model's class is in. What has no
place was made by the forward itself, and its value is part of the program.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn


def find_places(module: nn.Module) -> dict[int, str]:
    """Expressions by the address of the tensor's memory; an attribute goes before a global."""
    found: dict[int, str] = {}
    for path, owner in module.named_modules():
        prefix = "".join(f".{p}" if p.isidentifier() else f"._modules[{p!r}]" for p in _parts(path))
        for name, value in vars(owner).items():
            if name not in ("_parameters", "_buffers", "_modules"):
                _note(found, value, f"{prefix}.{name}")
    home = sys.modules.get(type(module).__module__)
    for name, value in vars(home).items() if home is not None else ():
        if not isinstance(value, nn.Module):
            _note(found, value, name)
    return found


def look_up(module: nn.Module, place: str) -> torch.Tensor:
    """The tensor at a place that `find_places` gave."""
    if place.startswith("."):
        found = eval(f"module{place}", {"module": module})
    else:
        found = eval(place, vars(sys.modules[type(module).__module__]))
    assert isinstance(found, torch.Tensor)
    return found


def _parts(path: str) -> list[str]:
    return path.split(".") if path else []


def _note(found: dict[int, str], value: Any, place: str) -> None:
    for tensor, inside in _tensors(value, place):
        if tensor.numel() and tensor.device.type != "meta":
            found.setdefault(tensor.data_ptr(), inside)


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
