"""Whatever people have becomes a module, with the example that comes with it.

In: a module, a function, an exported program or its file, a scripted module. Out: an nn.Module and
example inputs. A scripted module is the graph that it holds, where that can be had and gives what
it gives.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from kernelwright import structures
from kernelwright.errors import InputError
from kernelwright.frontend import exported, functions
from kernelwright.problem import as_arguments

SCRIPTS = torch.jit.ScriptModule, torch.jit.ScriptFunction


def as_module(
    model: nn.Module | ExportedProgram | Callable[..., Any] | str | Path,
    inputs: Any = None,
    kwargs: Mapping[str, Any] | None = None,
) -> tuple[nn.Module, Any, Mapping[str, Any] | None]:
    """The module, and its example inputs."""
    if isinstance(model, str | Path):
        model = exported.load(model)
    if isinstance(model, ExportedProgram):
        if inputs is None and kwargs is None and model.example_inputs is not None:
            inputs, kwargs = model.example_inputs
        return exported.as_module(model), inputs, kwargs
    if isinstance(model, SCRIPTS):
        return _scripted(model, inputs, kwargs), inputs, kwargs
    if isinstance(model, nn.Module):
        return model, inputs, kwargs
    return functions.as_module(model), inputs, kwargs


def _scripted(model: Any, inputs: Any, kwargs: Mapping[str, Any] | None) -> nn.Module:
    from torch._export.converter import TS2EPConverter

    given = as_arguments(inputs)
    if given is None or given[1] or kwargs:
        raise InputError("A scripted module needs its example inputs as a tuple, by position.")
    try:
        module = exported.as_module(TS2EPConverter(model, given[0]).convert())
        for name, value in (*model.named_parameters(), *model.named_buffers()):
            _put(module, name, value)
        same = _same(model, module, given[0])
    except Exception as error:
        told = next(iter(str(error).splitlines()), "")
        raise InputError(
            f"This TorchScript cannot be turned into a graph ({type(error).__name__}: {told}); "
            "give optimize() the module that was traced or scripted."
        ) from error
    if not same:
        raise InputError(
            "The graph that torch makes of this TorchScript gives other results; give optimize() "
            "the module that was traced or scripted."
        )
    return module


def _put(module: nn.Module, name: str, value: torch.Tensor) -> None:
    """The script's own tensor, in the place of torch's copy of it."""
    path, _, last = name.rpartition(".")
    owner = module.get_submodule(path)
    for table in (owner._parameters, owner._buffers):
        table.pop(last, None)
    if isinstance(value, nn.Parameter):
        owner.register_parameter(last, value)
    else:
        owner.register_buffer(last, value)


def _same(script: Any, module: nn.Module, inputs: tuple[Any, ...]) -> bool:
    """Whether both give the same for the example, from the same generator."""
    found = []
    for one in (copy.deepcopy(script), copy.deepcopy(module)):
        with torch.no_grad(), torch.random.fork_rng():
            torch.manual_seed(0)
            found.append(structures.tensors(one(*copy.deepcopy(inputs))))
    return len(found[0]) == len(found[1]) and all(
        a.shape == b.shape and torch.allclose(a, b, equal_nan=True)
        for a, b in zip(*found, strict=True)
    )
