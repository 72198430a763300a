"""The arguments of forward: how ModelNew receives them, and what the trace took them to be.

In: a Problem. Out: the signature as text, a Leaf for every value that the example gave or a default
stood for, and the checks that a later call still has those values.
"""

from __future__ import annotations

import builtins
import inspect
import re
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from kernelwright.emit import values
from kernelwright.graph import fresh_name
from kernelwright.problem import Problem
from kernelwright.runtime.baked import described

EMPTY = inspect.Parameter.empty
# Names of the file that the emitted functions use, and that no local may hide.
GLOBALS = {
    *("torch", "FUSION", "DEFAULTS", "Model", "outside", "GENERATED_GEMM", "STATE_TYPES"),
    *("described", "transformed", "asking", "laid", "is_ordinary", "is_channels_last", "in_order"),
    *("KERNEL_LIBRARY", "placed", "capability", "processors", "product_launch", "launch", "empty"),
    *("has_own", "from_batch", "of_pixels", "run", "keep_mask", "halves_of", "stamped", "unlike"),
    "fits",
}
POSITIONAL, KEYWORD = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
ANY = inspect.signature(lambda *args, **kwargs: None)
BY_PLACE = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD


@dataclass(frozen=True)
class Leaf:
    """One value of a call: the expressions that read it in forward and in outside(), and a name.

    The user's names are forward's alone: in other functions they could hide what is used there.
    """

    given: str
    place: str
    name: str
    value: Any

    @property
    def is_tensor(self) -> bool:
        return isinstance(self.value, torch.Tensor)


class _Text:
    """A default that prints as the given Python."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


class Arguments:
    """What one call of forward was, as text for any later one."""

    def __init__(self, problem: Problem, names: Mapping[type, str]) -> None:
        self.names = names
        function = inspect.getattr_static(type(problem.module), "forward", None)
        self.is_method = isinstance(function, types.FunctionType)
        self.signature = _taken(function) if isinstance(function, types.FunctionType) else ANY
        shown = inspect.signature(problem.module.forward).parameters
        self.shows_another = list(shown) != list(self.signature.parameters)
        self.parameters = list(self.signature.parameters.values())
        self.bound = self.signature.bind(*problem.inputs, **problem.kwargs)
        self.inside = {p.name: _safe(p.name) for p in self.parameters}
        self.taken = {*self.inside, *self.inside.values()}
        self.leaves: list[Leaf] = []
        self.checks: list[tuple[str, str]] = []
        self.rebuilt: list[str] = []
        for parameter in self.parameters:
            self._parameter(parameter)

    @property
    def tensors(self) -> list[Leaf]:
        return [leaf for leaf in self.leaves if leaf.is_tensor]

    @property
    def constants(self) -> list[Leaf]:
        """What is no tensor, and no literal that can be written down instead."""
        return [leaf for leaf in self.leaves if not leaf.is_tensor]

    @property
    def defaults(self) -> dict[str, str]:
        """Parameters whose default is no literal, and where the original's function has it."""
        by_place = [p for p in self.parameters if p.kind in BY_PLACE and p.default is not EMPTY]
        places = {p.name: f"__defaults__[{i - len(by_place)}]" for i, p in enumerate(by_place)}
        return {
            p.name: places.get(p.name, f'__kwdefaults__["{p.name}"]')
            for p in self.parameters
            if not _literal(p)
        }

    def printed(self) -> str:
        """The parameters of forward, without annotations."""
        shown = []
        for p in self.parameters:
            default = p.default
            if default is not EMPTY:
                default = _Text(values.literal(default) or f'DEFAULTS["{p.name}"]')
            shown.append(p.replace(annotation=EMPTY, default=default))
        return str(inspect.Signature(shown))[1:-1]

    def handed_on(self) -> str:
        """The same arguments in a call of the original forward."""
        return ", ".join(_handed(p, p.name) for p in self.parameters)

    # ---- values ------------------------------------------------------------------------------

    def _parameter(self, p: inspect.Parameter) -> None:
        given = p.name in self.bound.arguments
        value = self.bound.arguments.get(p.name, () if p.kind is POSITIONAL else p.default)
        if p.kind is KEYWORD and not given:
            value = {}
        place = self.inside[p.name]
        if not given and p.kind not in (POSITIONAL, KEYWORD) and not _literal(p):
            test = f'{place} is not DEFAULTS["{p.name}"]'
            self.checks.append((test, f"{p.name} is not its default"))
            self.rebuilt.append(_handed(p, f'DEFAULTS["{p.name}"]'))
            return
        self.owner = p.name
        self.rebuilt.append(_handed(p, self._value(place, value)))

    def _value(self, place: str, value: Any) -> str:
        """Note the leaves inside a value and what must hold of it; how it is built again."""
        if isinstance(value, torch.Tensor):
            return self._leaf(place, value)
        inner = values.parts(value)
        if inner is not None:
            self.checks.append(values.built_otherwise(value, place, self.names))
            written = [(inside, self._value(place + inside, part)) for inside, part in inner]
            return values.constructed(value, written, self.names)
        if (text := values.literal(value)) is not None:
            self.checks.append((values.different(value, place), f"{place} is not {text}"))
            return text
        name = self._leaf(place, value)
        test = f"described({place}) != {values.quoted(described(value))}"
        self.checks.append((test, f"{place} is not as in the example"))
        return name

    def _leaf(self, place: str, value: Any) -> str:
        name = place
        if not place.isidentifier():
            name = fresh_name(re.sub(r"\W+", "_", place, flags=re.ASCII).strip("_"), self.taken)
        given = self.owner + place.removeprefix(self.inside[self.owner])
        self.leaves.append(Leaf(given, place, name, value))
        return name


def _taken(function: types.FunctionType) -> inspect.Signature:
    """The arguments that reach a forward, behind the module itself.

    A decorator may show the signature of what it decorates, and look at which arguments were given
    by name; so the signature is read off the code, without what was put on top.
    """
    code, closure = function.__code__, function.__closure__
    bare = types.FunctionType(code, {}, code.co_name, function.__defaults__, closure)
    bare.__kwdefaults__ = function.__kwdefaults__
    parameters = list(inspect.signature(bare).parameters.values())
    return inspect.Signature(parameters[parameters[0].kind is not POSITIONAL :])


def _safe(name: str) -> str:
    """A parameter's name for functions in which builtins and names of the file are used."""
    return f"{name}_" if hasattr(builtins, name) or name in GLOBALS else name


def _literal(p: inspect.Parameter) -> bool:
    return p.default is EMPTY or values.literal(p.default) is not None


def _handed(p: inspect.Parameter, text: str) -> str:
    if p.kind in (POSITIONAL, KEYWORD):
        return f"*{text}" if p.kind is POSITIONAL else f"**{text}"
    return f"{p.name}={text}" if p.kind is inspect.Parameter.KEYWORD_ONLY else text
