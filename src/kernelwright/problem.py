"""A model file, or a live module, becomes a Problem: all that later passes need to know of it.

In: a path to a file in KernelBench's format (`class Model`, `get_inputs()`, `get_init_inputs()`) or
an `nn.Module` with example inputs. Out: a frozen Problem. Loading a file runs it: only load files
that you would run yourself.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from kernelwright import structures
from kernelwright.borrowed import as_original
from kernelwright.calls import Autocast
from kernelwright.errors import InputError, UnsupportedError
from kernelwright.formats.function import with_model
from kernelwright.loading import importing_from, place_of, read_source
from kernelwright.loading import load_source as load_source

MatmulPrecision = Literal["highest", "high", "medium"]
PRECISIONS: tuple[MatmulPrecision, ...] = ("highest", "high", "medium")
WRAPPERS = ("OptimizedModule", "DataParallel", "DistributedDataParallel")


@dataclass(frozen=True)
class Problem:
    """A model with example inputs, in the mode and at the precision it is to be compiled for.

    `inputs` are the positional arguments of forward, `kwargs` those that are given by name; both
    may be nested. `init_args` and `init_kwargs` are what a file's Model was built with, and `user`
    is the module that loading the file gave. The leading sizes of the tensors `held`, by their
    numbers, are no batch: they are those of the example in every call. `free` are further axes,
    each by the number of its tensor, whose sizes may be others in each call. `autocast`
    is what its forward runs under. `flat` says that all of its arguments are tensors, none of them
    twice, and that a call in the other mode is another problem. `recorded` says whether gradients
    are recorded, for a forward that asks. `guarded` says that whoever calls the result has looked
    at its arguments (Dynamo), and brings the state with each call.
    """

    name: str
    module: nn.Module
    inputs: tuple[Any, ...]
    source: str | None
    path: Path | None
    precision: MatmulPrecision
    conv_tf32: bool
    kwargs: dict[str, Any] = field(default_factory=dict)
    init_args: tuple[Any, ...] = ()
    init_kwargs: dict[str, Any] = field(default_factory=dict)
    user: types.ModuleType | None = None
    held: frozenset[int] = frozenset()
    guarded: bool = False
    free: frozenset[tuple[int, int]] = frozenset()
    autocast: Autocast | None = None
    flat: bool = False
    recorded: bool = False

    @property
    def training(self) -> bool:
        return self.module.training

    @property
    def asks_for_gradients(self) -> bool:
        """Whether it is a live module that is being trained."""
        own = [*self.module.parameters(), *self.tensors]
        return self.source is None and self.training and any(x.requires_grad for x in own)

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All tensors of the example inputs, nested ones too, in the order of the arguments."""
        return tuple(structures.tensors((self.inputs, self.kwargs)))

    @property
    def device(self) -> torch.device:
        return next((x.device for x in self.tensors), CPU)

    @property
    def batch(self) -> int:
        """That of the example inputs."""
        return next((int(x.shape[0]) for x in self.tensors if x.ndim), 1)

    def __str__(self) -> str:
        mode = "train" if self.training else "eval"
        inputs = [describe(x) for x in self.inputs]
        inputs += [f"{name}={describe(x)}" for name, x in self.kwargs.items()]
        where = f"{self.device}, {mode} mode, float32 matmul {self.precision}"
        return f"{self.name} on {where}: ({', '.join(inputs)})"


CPU = torch.device("cpu")


def describe(value: object) -> str:
    """`f32[1024, 8192]` for a tensor, the same inside of containers, `repr` for anything else."""
    if isinstance(value, torch.Tensor):
        short = str(value.dtype).removeprefix("torch.").replace("float", "f")
        return f"{short}{list(value.shape)}"
    if not structures.tensors(value):
        return repr(value)
    return repr(pytree.tree_map(_Described, value))


class _Described:
    """Prints as the description of a value, wherever it stands."""

    def __init__(self, value: object) -> None:
        self.text = describe(value)

    def __repr__(self) -> str:
        return self.text


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
    text = model_text(path)
    user = load_source(path, text)
    model_class = getattr(user, "Model", None)
    if not (isinstance(model_class, type) and issubclass(model_class, nn.Module)):
        raise InputError(
            f"{path} defines no `class Model(nn.Module)`, and no function that could be one; "
            "rename the module to Model."
        )
    with importing_from(place_of(path)):
        torch.manual_seed(seed)
        init_args, init_kwargs = init_inputs(user, path)
        module = _construct(model_class, init_args, init_kwargs, path)
        torch.manual_seed(seed)
        args, kwargs = (resolved(to_device(x, target)) for x in example_inputs(user, path))
    _check_scripted(module)
    _initialise(module.to(target), args, kwargs)
    problem = Problem(
        path.stem,
        module,
        args,
        text,
        path,
        chosen,
        _conv_tf32(),
        kwargs,
        init_args,
        init_kwargs,
        user,
    )
    check_problem(problem)
    return problem


def model_text(path: Path) -> str:
    """The text of a model file, with class Model around its function if it has no class."""
    return with_model(read_source(path), path.stem)


def problem_from_module(
    module: nn.Module,
    example_inputs: Any,
    precision: str = "current",
    example_kwargs: Mapping[str, Any] | None = None,
) -> Problem:
    """Wrap a live module as it stands: its mode, its device, its parameters.

    `example_inputs` is a tuple or list of the arguments of forward, a dict of them by name, or one
    bare tensor.
    """
    if not isinstance(module, nn.Module):
        raise InputError("optimize() takes an nn.Module or the path of a model file.")
    if type(module).__module__.startswith("torch.") and type(module).__name__ in WRAPPERS:
        raise InputError(
            f"optimize() takes the model itself, not the {type(module).__name__} around it; "
            "give it the module inside."
        )
    _check_scripted(module)
    if "forward" in vars(module):
        raise InputError(
            f"The forward of this {type(module).__name__} was replaced on the instance; "
            "put it into a class of its own, which the emitted file can repeat."
        )
    module = as_original(module)
    if example_inputs is None:
        example_inputs = ()
    if (arguments := as_arguments(example_inputs)) is None:
        kind = type(example_inputs).__name__
        raise InputError(
            "example_inputs must be a tuple of the arguments of forward, a dict of them by name, "
            f"or one tensor, but it is a {kind}."
        )
    args, kwargs = arguments
    twice = sorted(set(kwargs) & set(example_kwargs or {}))
    if twice:
        raise InputError(f"{twice[0]} is in example_inputs and in example_kwargs; give it once.")
    args, kwargs = resolved(args), resolved({**kwargs, **(example_kwargs or {})})
    if not args and not kwargs:
        raise InputError(
            "A live module needs example inputs; give a tuple of the arguments of its forward."
        )
    chosen = resolve_precision(precision)
    _initialise(module, args, kwargs)
    name = type(module).__name__
    problem = Problem(name, module, args, None, None, chosen, _conv_tf32(), kwargs)
    check_problem(problem)
    return problem


def _check_scripted(module: nn.Module) -> None:
    """TorchScript has no Python to trace."""
    for name, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            raise InputError(
                f"{name or 'The module'} is TorchScript, which cannot be traced again; give "
                "optimize() the module that was traced or scripted."
            )


def _initialise(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Lazy layers take their sizes from the example, as they do from a first call."""
    if not any(map(is_lazy, (*module.parameters(), *module.buffers()))):
        return
    modes = [(m, m.training) for m in module.modules()]
    module.eval()  # so that nothing else changes
    try:
        with torch.no_grad():
            module(*args, **kwargs)
    finally:
        for part, training in modes:
            part.training = training


def check_problem(problem: Problem) -> None:
    """One device for all tensors, and a forward that accepts the inputs."""
    if not problem.tensors:
        raise InputError("None of the example inputs is a tensor, so there is nothing to compile.")
    for x in problem.tensors:
        if x.layout is not torch.strided or x.is_nested:
            kind = "nested" if x.is_nested else str(x.layout).removeprefix("torch.")
            raise UnsupportedError(
                f"An example input is a tensor of kind {kind}, and kernels are for dense ones; "
                "optimize the submodules that are given dense tensors."
            )
    devices = {t.device for t in problem.tensors}
    devices |= {t.device for t in [*problem.module.parameters(), *problem.module.buffers()]}
    if len(devices) > 1:
        names = ", ".join(sorted(str(d) for d in devices))
        raise InputError(f"Model and inputs are on several devices ({names}); move them to one.")
    try:
        inspect.signature(problem.module.forward).bind(*problem.inputs, **problem.kwargs)
    except TypeError as error:
        raise InputError(_not_accepted(problem, error)) from error


def _not_accepted(problem: Problem, error: TypeError) -> str:
    where = "get_inputs()" if problem.path else "example_inputs"
    count = len(problem.inputs) + len(problem.kwargs)
    text = f"{where} gives {count} value(s) that Model.forward does not accept: {error}."
    if problem.kwargs and not problem.inputs:
        text += " A dict holds inputs by name; put it into a list if forward takes the dict itself."
    return text


def as_arguments(value: Any) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Positional and named arguments from a list, a tuple, a dict or one tensor."""
    if isinstance(value, torch.Tensor):
        return (value,), {}
    if isinstance(value, list | tuple):
        return tuple(value), {}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return (), dict(value)
    return None


def to_device(value: Any, device: torch.device) -> Any:
    """Every tensor moved, wherever it stands in a nested value."""
    structures.register(value)
    return pytree.tree_map_only(torch.Tensor, lambda x: x.to(device), value)


def resolved(value: Any) -> Any:
    """The same values; what torch has put off to conjugate or to negate is done now.

    Kernels are for plain tensors, and the original runs on others.
    """

    def one(x: torch.Tensor) -> torch.Tensor:
        return x.detach().resolve_conj().resolve_neg().requires_grad_(x.requires_grad)

    if not any(x.is_conj() or x.is_neg() for x in structures.tensors(value)):
        return value
    return pytree.tree_map_only(torch.Tensor, one, value)


def example_inputs(user: types.ModuleType, path: Path) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a file's get_inputs() gives: positional and named arguments of forward."""
    return _call(user, "get_inputs", path)


def init_inputs(user: types.ModuleType, path: Path) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a file's get_init_inputs() gives, nothing if it has none."""
    if not hasattr(user, "get_init_inputs"):
        return (), {}
    return _call(user, "get_init_inputs", path)


def in_mode(problem: Problem, training: bool | None) -> Problem:
    """The problem in train or eval mode; None leaves the mode in which it was constructed."""
    if training is not None:
        problem.module.train(training)
    return problem


def _conv_tf32() -> bool:
    return bool(torch.backends.cudnn.allow_tf32)


def _call(user: types.ModuleType, name: str, path: Path) -> tuple[tuple[Any, ...], dict[str, Any]]:
    function = cast("Callable[[], Any] | None", getattr(user, name, None))
    if not callable(function):
        raise InputError(f"{path} defines no `{name}()`; add a function that returns a list.")
    try:
        value = function()
    except Exception as error:
        raise InputError(f"{name}() in {path} raised {type(error).__name__}: {error}.") from error
    if (arguments := as_arguments(value)) is None:
        kind = type(value).__name__
        raise InputError(
            f"{name}() in {path} must return a list, or a dict by argument name, but it returned a "
            f"{kind}."
        )
    return arguments


def _construct(
    model_class: type[nn.Module], args: tuple[Any, ...], kwargs: dict[str, Any], path: Path
) -> nn.Module:
    try:
        return model_class(*args, **kwargs)
    except Exception as error:
        kind = type(error).__name__
        raise InputError(
            f"Model(*get_init_inputs()) in {path} raised {kind}: {error}. "
            "Make get_init_inputs() return the arguments of Model.__init__."
        ) from error
