"""The user's module while kernelwright calls it: left as it was, and as the original that it is."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

from torch import nn

from kernelwright.twins import twin


@contextlib.contextmanager
def untouched(module: nn.Module) -> Iterator[None]:
    """Afterwards the attributes of every module in the tree are what they were."""
    kept = [(vars(m), dict(vars(m))) for m in module.modules()]
    held = [v for _, copied in kept for v in copied.values() if isinstance(v, list | dict | set)]
    copies = [(value, copy.copy(value)) for value in held]
    try:
        yield
    finally:
        for value, before in copies:
            if len(value) != len(before) or any(
                a is not b for a, b in zip(_all(value), _all(before), strict=True)
            ):
                value.clear()
                (value.extend if isinstance(value, list) else value.update)(before)
        for namespace, before in kept:
            namespace.clear()
            namespace.update(before)


def _all(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else list(value)


@contextlib.contextmanager
def unfused(module: nn.Module) -> Iterator[None]:
    """A module inside that was optimized before is traced as the original that it replaces."""
    records = [vars(m) for m in module.modules() if "_kernelwright" in vars(m)]
    for record in records:
        record["_kernelwright_original"] = True
    try:
        yield
    finally:
        for record in records:
            del record["_kernelwright_original"]


def as_original(module: nn.Module) -> nn.Module:
    """What an optimized module replaces, over the same tensors; any other module is itself."""
    if "_kernelwright" not in vars(module):
        return module
    mro = type(module).__mro__
    emitted = next(i for i, kind in enumerate(mro) if kind.__name__ == "ModelNew")
    original = twin(module, mro[emitted + 1])
    for name in [name for name in vars(original) if name.startswith("_kernelwright")]:
        del vars(original)[name]
    return original
