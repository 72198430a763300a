"""A plain function becomes a module without state, of a class that can be written down.

In: a function of tensors, or a method of a module. Out: an nn.Module with the function's own
signature; a method's module is part of it. The one idea: what a function finds around it is no
argument, so nobody would hear of its change. Tensors and modules there are refused with a sentence.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from kernelwright.errors import InputError
from kernelwright.frontend.graphs import defined
from kernelwright.graph import identifier

CLASS = '''class {name}(torch.nn.Module):
    """{function} as a module."""

    def forward({taken}):
        return {called}({handed})
'''
KINDS = inspect.Parameter
HANDED: dict[Any, str] = {
    KINDS.VAR_POSITIONAL: "*{0}",
    KINDS.VAR_KEYWORD: "**{0}",
    KINDS.KEYWORD_ONLY: "{0}={0}",
}
ADVICE = "give it as an argument, or put it into an nn.Module"


def as_module(function: Callable[..., Any]) -> nn.Module:
    """The module whose forward calls a function."""
    if isinstance(function, functools.partial):
        raise InputError(
            "optimize() takes no functools.partial, whose arguments nobody would hear of; "
            "give it the function and all of its arguments."
        )
    owner = getattr(function, "__self__", None)
    if isinstance(owner, nn.Module):
        name = getattr(function, "__name__", "forward")
        made = _made(function, name, f"{{owner}}.module.{name}", {})
        made.module = owner
        return made
    if not isinstance(function, types.FunctionType):
        kind = type(function).__name__
        raise InputError(
            "optimize() takes an nn.Module, a function, an exported program or a path, "
            f"not a {kind}."
        )
    for found, value in _around(function, set()):
        what = "module" if isinstance(value, nn.Module) else "tensor"
        raise InputError(f"{function.__name__} uses the {what} {found} from around it; {ADVICE}.")
    name = identifier(function.__name__.replace("<lambda>", "function"))
    name = f"{name}_function" if name in ("self", "torch") else name
    return _made(function, name, name, {name: function})


def _made(function: Any, name: str, called: str, space: dict[str, Any]) -> nn.Module:
    owner, taken, handed, defaults = _signature(function)
    called = called.format(owner=owner)
    kind = "".join(part.capitalize() for part in name.split("_")) or "Function"
    kind = f"{kind}Module" if kind in space else kind
    text = CLASS.format(name=kind, function=name, taken=taken, called=called, handed=handed)
    made: nn.Module = defined(text, kind, {"torch": torch, **space, **defaults})()
    return made


def _signature(function: Any) -> tuple[str, str, str, dict[str, Any]]:
    """The name of self, all parameters, how they are handed on, and defaults by their names."""
    handed, defaults = [], {}
    parameters = list(inspect.signature(function).parameters.values())
    owner = "self" if all(p.name != "self" for p in parameters) else "self_"
    taken = [KINDS(owner, KINDS.POSITIONAL_OR_KEYWORD)]
    if any(p.kind is KINDS.POSITIONAL_ONLY for p in parameters):
        taken = [KINDS(owner, KINDS.POSITIONAL_ONLY)]
    for p in parameters:
        default = p.default
        if default is not KINDS.empty and not isinstance(default, bool | int | float | str | None):
            defaults[f"default_of_{p.name}"] = default
            default = _Name(f"default_of_{p.name}")
        taken.append(p.replace(annotation=KINDS.empty, default=default))
        handed.append(HANDED.get(p.kind, "{0}").format(p.name))
    return owner, str(inspect.Signature(taken))[1:-1], ", ".join(handed), defaults


class _Name:
    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


def _around(function: types.FunctionType, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Tensors and modules that a function reaches without being given them."""
    if id(function) in seen:
        return
    seen.add(id(function))
    names = inspect.getclosurevars(function)
    for name, value in {**names.globals, **names.nonlocals}.items():
        for part in _parts(value):
            if isinstance(part, torch.Tensor | nn.Module):
                yield name, part
            elif isinstance(part, types.FunctionType) and not part.__module__.startswith("torch."):
                yield from _around(part, seen)


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        yield from value
    elif isinstance(value, dict):
        yield from value.values()
    else:
        yield value
