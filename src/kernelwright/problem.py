"""A model file, or a live module, becomes a Problem: all that later passes need to know of it.

In: a path to a file in KernelBench's format (`class Model`, `get_inputs()`, `get_init_inputs()`) or
an `nn.Module` with example inputs. Out: a frozen Problem. Loading a file runs it: only load files
that you would run yourself.
"""

from __future__ import annotations

import inspect
import sys
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import nn
from torch.utils import _pytree as pytree

from kernelwright.errors import InputError

MatmulPrecision = Literal["highest", "high", "medium"]
PRECISIONS: tuple[MatmulPrecision, ...] = ("highest", "high", "medium")


@dataclass(frozen=True)
class Problem:
    """A model with example inputs, in the mode and at the precision it is to be compiled for."""

    name: str
    module: nn.Module
    inputs: tuple[Any, ...]
    source: str | None
    path: Path | None
    precision: MatmulPrecision
    conv_tf32: bool
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors among the inputs, in the order of their leaves."""
        leaves = pytree.tree_leaves((self.inputs, dict(self.kwargs)))
        return [x for x in leaves if isinstance(x, torch.Tensor)]

    @property
    def training(self) -> bool:
        return self.module.training

    @property
    def device(self) -> torch.device:
        return next((x.device for x in self.inputs if isinstance(x, torch.Tensor)), CPU)

    @property
    def batch(self) -> int:
        """That of the example inputs."""
        sizes = [x.shape[0] for x in self.inputs if getattr(x, "ndim", 0)]
        return int(sizes[0]) if sizes else 1

    def __str__(self) -> str:
        mode = "train" if self.training else "eval"
        inputs = ", ".join(describe(x) for x in self.inputs)
        where = f"{self.device}, {mode} mode, float32 matmul {self.precision}"
        return f"{self.name} on {where}: ({inputs})"


CPU = torch.device("cpu")


def describe(value: object) -> str:
    """`f32[1024, 8192]` for a tensor, `repr` for anything else."""
    if isinstance(value, torch.Tensor):
        short = str(value.dtype).removeprefix("torch.").replace("float", "f")
        return f"{short}{list(value.shape)}"
    return repr(value)


def load_source(path: Path) -> types.ModuleType:
    """Run a Python file as a fresh module that its own classes can find (pickle, inspect)."""
    if not path.is_file():
        raise InputError(f"There is no file {path}; give the path of a Python model file.")
    text = path.read_text()
    module = types.ModuleType(f"kernelwright_user_{path.stem}_{abs(hash(str(path.resolve())))}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    try:
        exec(compile(text, str(path), "exec"), module.__dict__)
    except Exception as error:
        line = traceback.extract_tb(error.__traceback__)[-1].lineno
        kind = type(error).__name__
        raise InputError(
            f"{path} raised {kind} while it was loaded (line {line}): {error}. "
            "Run it with python first."
        ) from error
    return module


def resolve_device(name: str) -> torch.device:
    """`auto` is the GPU when there is one; an explicit device must exist."""
    if name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else CPU
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(
            "--device cuda was asked for, but torch sees no GPU here; use --device cpu."
        )
    return device


def resolve_precision(name: str) -> MatmulPrecision:
    """`current` is what `torch.get_float32_matmul_precision()` says now."""
    chosen = torch.get_float32_matmul_precision() if name == "current" else name
    if chosen not in PRECISIONS:
        raise InputError(f"Unknown precision {name!r}; use current, highest, high or medium.")
    return chosen


def load_problem(
    path: str | Path, device: str = "auto", precision: str = "current", seed: int = 0
) -> Problem:
    """Load a model file, build its Model under `seed`, and move model and inputs to the device."""
    path = Path(path)
    target = resolve_device(device)
    chosen = resolve_precision(precision)
    user = load_source(path)
    model_class = getattr(user, "Model", None)
    if not (isinstance(model_class, type) and issubclass(model_class, nn.Module)):
        raise InputError(f"{path} defines no `class Model(nn.Module)`; rename the module to Model.")
    torch.manual_seed(seed)
    init_inputs = _call_list(user, "get_init_inputs", path, optional=True)
    module = _construct(model_class, init_inputs, path)
    torch.manual_seed(seed)
    inputs = _call_list(user, "get_inputs", path)
    placed = tuple(x.to(target) if isinstance(x, torch.Tensor) else x for x in inputs)
    problem = Problem(
        path.stem, module.to(target), placed, path.read_text(), path, chosen, _conv_tf32()
    )
    check_problem(problem)
    return problem


def problem_from_module(
    module: nn.Module, example_inputs: Sequence[Any], precision: str = "current"
) -> Problem:
    """Wrap a live module as it stands: its mode, its device, its parameters."""
    if not isinstance(module, nn.Module):
        raise InputError("optimize() takes an nn.Module or the path of a model file.")
    inputs = tuple(example_inputs) if isinstance(example_inputs, list | tuple) else None
    if not inputs:
        raise InputError("example_inputs must be a non-empty tuple of the arguments of forward.")
    chosen = resolve_precision(precision)
    problem = Problem(type(module).__name__, module, inputs, None, None, chosen, _conv_tf32())
    check_problem(problem)
    return problem


def check_problem(problem: Problem) -> None:
    """One device for all tensors, and a forward that accepts the inputs."""
    tensors = [x for x in problem.inputs if isinstance(x, torch.Tensor)]
    if not tensors:
        raise InputError("None of the example inputs is a tensor, so there is nothing to compile.")
    devices = {t.device for t in tensors}
    devices |= {t.device for t in [*problem.module.parameters(), *problem.module.buffers()]}
    if len(devices) > 1:
        names = ", ".join(sorted(str(d) for d in devices))
        raise InputError(f"Model and inputs are on several devices ({names}); move them to one.")
    try:
        inspect.signature(problem.module.forward).bind(*problem.inputs)
    except TypeError as error:
        count = len(problem.inputs)
        raise InputError(
            f"get_inputs() gives {count} value(s) that Model.forward does not accept: {error}."
        ) from error


def _conv_tf32() -> bool:
    return bool(torch.backends.cudnn.allow_tf32)


def _call_list(user: types.ModuleType, name: str, path: Path, optional: bool = False) -> list[Any]:
    function = cast("Callable[[], Any] | None", getattr(user, name, None))
    if function is None and optional:
        return []
    if not callable(function):
        raise InputError(f"{path} defines no `{name}()`; add a function that returns a list.")
    try:
        value = function()
    except Exception as error:
        raise InputError(f"{name}() in {path} raised {type(error).__name__}: {error}.") from error
    if not isinstance(value, list | tuple):
        kind = type(value).__name__
        raise InputError(f"{name}() in {path} must return a list, but it returned a {kind}.")
    return list(value)


def _construct(model_class: type[nn.Module], init_inputs: list[Any], path: Path) -> nn.Module:
    try:
        return model_class(*init_inputs)
    except Exception as error:
        kind = type(error).__name__
        raise InputError(
            f"Model(*get_init_inputs()) in {path} raised {kind}: {error}. "
            "Make get_init_inputs() return the arguments of Model.__init__."
        ) from error
