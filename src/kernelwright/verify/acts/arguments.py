"""Arguments of forward that the file's inputs do not give, or give as plain values.

In: a module and its inputs. Out: Ways to call it otherwise, each of which makes Inputs of given
ones. A trace keeps the values of the example: a scale, a mode, a mask that was None. Each is varied
here, by keyword and by position. This runs where the original is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from kernelwright.verify.inputs import Inputs, seeded, tensors_in
from kernelwright.verify.variations import UNKNOWN, literals, others

EACH = 4  # values tried for one parameter

# Parameters whose name says that they are tensors when they are not None.
TENSOR_NAMES = ("mask", "bias", "weight", "scale", "shift", "residual", "skip", "context", "memory")

Value = Callable[[Inputs], Any]


@dataclass(frozen=True)
class Way:
    """One way to call; an `optional` one says nothing where eager does not accept it."""

    label: str
    make: Callable[[Inputs, int], Inputs]
    optional: bool = False


def ways(module: nn.Module, inputs: Inputs) -> list[Way]:
    """Every parameter that has a default, or was given as a plain value, and one too many."""
    signature = inspect.signature(module.forward)
    return [*_ways(module, signature, inputs), _one_too_many(signature)]


def _ways(module: nn.Module, signature: inspect.Signature, inputs: Inputs) -> Iterator[Way]:
    given = signature.bind(*inputs.args, **inputs.kwargs).arguments
    yield from _inputs_by_keyword(signature, given)
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            yield _one(signature, name, "one more", _extended(given.get(name, ())), False)
        elif parameter.kind is parameter.VAR_KEYWORD:
            continue
        elif name not in given or not tensors_in([given[name]]):
            yield from _of_parameter(module, signature, parameter, given)


def _one_too_many(signature: inspect.Signature) -> Way:
    """An argument by a name that nobody has: forward raises, unless it takes any."""

    def make(inputs: Inputs, seed: int) -> Inputs:
        return Inputs(inputs.args, {**inputs.kwargs, "surplus": 1.0})

    return Way("forward with an argument that it does not have", make)


def _inputs_by_keyword(signature: inspect.Signature, given: dict[str, Any]) -> Iterator[Way]:
    kinds = {signature.parameters[name].kind for name in given}
    if kinds == {inspect.Parameter.POSITIONAL_OR_KEYWORD}:
        first = next(iter(given))

        def make(inputs: Inputs, seed: int) -> Inputs:
            bound = signature.bind(*inputs.args, **inputs.kwargs)
            return _rebound(signature, bound.arguments, by_keyword_from=first)

        yield Way(f"inputs given by keyword ({', '.join(given)})", make)


def _of_parameter(
    module: nn.Module,
    signature: inspect.Signature,
    parameter: inspect.Parameter,
    given: dict[str, Any],
) -> Iterator[Way]:
    """Its own default said aloud, and other values, each by keyword and by position."""
    name = parameter.name
    value = given.get(name, parameter.default)
    tried: list[tuple[str, Value, bool]] = []
    if name not in given:
        tried.append((repr(value), lambda inputs: value, False))
    if value is None:
        tried += [(label, made, True) for label, made in _instead_of_none(parameter)]
    texts = [*literals(module.forward, name), UNKNOWN]
    for other in others(value, texts)[:EACH]:
        tried.append((repr(other), partial(_constant, other), False))
    for label, made, optional in tried:
        for by_keyword in _by_keyword(parameter):
            yield _one(signature, name, label, made, optional, by_keyword)


def _constant(value: Any, inputs: Inputs) -> Any:
    return value


def _by_keyword(parameter: inspect.Parameter) -> tuple[bool, ...]:
    if parameter.kind is parameter.KEYWORD_ONLY:
        return (True,)
    return (False,) if parameter.kind is parameter.POSITIONAL_ONLY else (True, False)


def _one(
    signature: inspect.Signature,
    name: str,
    label: str,
    made: Value,
    optional: bool,
    by_keyword: bool = False,
) -> Way:
    def make(inputs: Inputs, seed: int) -> Inputs:
        bound = signature.bind(*inputs.args, **inputs.kwargs)
        with seeded(seed):
            bound.arguments[name] = made(inputs)
        if by_keyword:
            return _rebound(signature, bound.arguments, by_keyword_from=name)
        bound.apply_defaults()
        return Inputs(bound.args, bound.kwargs)

    way = "by keyword" if by_keyword else "by position"
    return Way(f"forward with {name} = {label} {way}", make, optional)


def _rebound(
    signature: inspect.Signature, arguments: dict[str, Any], by_keyword_from: str
) -> Inputs:
    """The arguments before a parameter by position, that one and all after it by keyword."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for name, parameter in signature.parameters.items():
        if name not in arguments:
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            args += arguments[name]
        elif parameter.kind is parameter.VAR_KEYWORD:
            kwargs.update(arguments[name])
        elif kwargs or name == by_keyword_from or parameter.kind is parameter.KEYWORD_ONLY:
            kwargs[name] = arguments[name]
        else:
            args.append(arguments[name])
    return Inputs(tuple(args), kwargs)


def _extended(given: tuple[Any, ...]) -> Value:
    return lambda inputs: (*given, torch.randn_like(tensors_in(inputs)[0].float()))


def _instead_of_none(parameter: inspect.Parameter) -> Iterator[tuple[str, Value]]:
    """What may stand where None is the default, by the annotation or the name."""
    annotation = "" if parameter.annotation is parameter.empty else str(parameter.annotation)
    if not annotation or "Tensor" in annotation or any(n in parameter.name for n in TENSOR_NAMES):
        yield "a mask", lambda inputs: torch.rand_like(_like(inputs)) > 0.4
        yield "a tensor", lambda inputs: torch.randn_like(_like(inputs))
        yield "a vector", lambda inputs: torch.randn_like(_like(inputs).flatten()[: _last(inputs)])
    if not annotation or "float" in annotation:
        yield "0.5", partial(_constant, 0.5)
    if "int" in annotation:
        yield "2", partial(_constant, 2)
    if "bool" in annotation:
        yield "True", partial(_constant, True)


def _like(inputs: Inputs) -> Tensor:
    """A floating tensor of the first input's shape."""
    first = tensors_in(inputs)[0]
    return first if first.is_floating_point() else first.float()


def _last(inputs: Inputs) -> int:
    return int(_like(inputs).shape[-1]) if _like(inputs).ndim else 1
