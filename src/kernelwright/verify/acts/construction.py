"""Other arguments for the constructor of a model, where the model still runs on its inputs.

In: the class, its arguments, and inputs. Out: Inputs of the constructor, one other value at a time.
This runs where the original is.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterable, Iterator

import torch
from torch import nn

from kernelwright.verify.inputs import Inputs, forward, map_tensors
from kernelwright.verify.variations import UNKNOWN, literals, others


def constructions(
    model_class: type[nn.Module], given: Inputs, inputs: Inputs, training: bool
) -> list[Inputs]:
    """The first other value of every argument, then the second ones: time may run out."""
    found = list(_in_turns(_varied(model_class, given)))
    if not _runs_on_meta(model_class, given, inputs, training):
        return found
    return [x for x in found if _runs_on_meta(model_class, x, inputs, training)]


def _runs_on_meta(
    model_class: type[nn.Module], arguments: Inputs, inputs: Inputs, training: bool
) -> bool:
    """Whether Model accepts the arguments and its inputs then, without any memory for it."""
    given = map_tensors(lambda x: x.to("meta"), inputs)
    try:
        with torch.device("meta"), torch.no_grad():
            model = model_class(*arguments.args, **arguments.kwargs)
            forward(model.train(training), given)
    except Exception:
        return False
    return True


def _in_turns(groups: Iterable[list[Inputs]]) -> Iterator[Inputs]:
    for row in itertools.zip_longest(*groups):
        yield from (arguments for arguments in row if arguments is not None)


def _varied(model_class: type[nn.Module], arguments: Inputs) -> Iterator[list[Inputs]]:
    """For each of the given arguments, and for each default that was not given, other values."""
    signature = inspect.signature(model_class)
    given = signature.bind(*arguments.args, **arguments.kwargs).arguments
    for index, value in enumerate(arguments.args):
        name = list(signature.parameters)[min(index, len(signature.parameters) - 1)]
        before, after = arguments.args[:index], arguments.args[index + 1 :]
        found = others(value, [*literals(model_class, name), UNKNOWN])
        yield [Inputs((*before, other, *after), arguments.kwargs) for other in found]
    for name, parameter in signature.parameters.items():
        value = arguments.kwargs.get(name, parameter.default)
        positional = name in given and name not in arguments.kwargs
        if positional or value is parameter.empty:
            continue
        found = others(value, [*literals(model_class, name), UNKNOWN])
        yield [Inputs(arguments.args, {**arguments.kwargs, name: other}) for other in found]
