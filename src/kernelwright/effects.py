"""What a call does besides giving results: it prints, asks a clock, draws or sets something.

In: a call of the user's forward inside `watched`. Out: its first effect in words, or None.
torch.export records none of these, so a model that has one runs its own forward in every call. The
one idea: a profiler hears every function that the user's code calls, also those of C, and whatever
belongs to the whole process is compared before and after. `undone` puts that back.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import logging
import os
import random
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kernelwright.errors import PACKAGE

TORCH = Path(torch.__file__).parent
WRAPPERS = (str(TORCH / "_compile.py"), str(TORCH / "_dynamo"))
LIBRARIES = ("numpy", "sympy", "opt_einsum")
# What C functions of these modules, or of these names, do is no value of tensors.
MODULES = {"time": "asks for the time", "posix": "asks the system", "_warnings": "warns"}
NAMES = {
    "print": "prints",
    "input": "asks the user",
    "open": "opens a file",
    "write": "writes",
    "now": "asks for the time",
    "today": "asks for the time",
    "utcnow": "asks for the time",
}
SEEDED = ("manual_seed", "seed", "set_state", "set_offset")
# Functions of Python by their code, and torch's that set what its own functions read.
TELLING: dict[types.CodeType, str] = {
    logging.Logger._log.__code__: "logs",  # before a library's own kind of record asks for the time
    logging.Logger.handle.__code__: "logs",
    **{
        inspect.unwrap(function).__code__: f"calls torch.{function.__name__}"
        for function in vars(torch).values()
        if isinstance(function, types.FunctionType)
        and function.__name__.startswith(("manual_seed", "seed", "set_", "use_deterministic"))
    },
    torch.cuda.manual_seed.__code__: "calls torch.cuda.manual_seed",
    torch.cuda.manual_seed_all.__code__: "calls torch.cuda.manual_seed_all",
    torch.cuda.set_rng_state.__code__: "calls torch.cuda.set_rng_state",
}


def _set_environment(kept: dict[str, str]) -> None:
    for name in set(os.environ) - set(kept):
        del os.environ[name]
    os.environ.update(kept)


# What belongs to the process: how it is read, and put back.
SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "whether gradients are recorded": (torch.is_grad_enabled, torch._C._set_grad_enabled),
    "the number of threads": (torch.get_num_threads, torch.set_num_threads),
    "the precision of products": (
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
    ),
    "the state of Python's random": (random.getstate, random.setstate),
    "the state of torch's generator": (
        lambda: bytes(torch.get_rng_state().numpy()),
        lambda state: torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8)),
    ),
    **{
        f"torch.backends.cudnn.{name}": (
            functools.partial(getattr, torch.backends.cudnn, name),
            functools.partial(setattr, torch.backends.cudnn, name),
        )
        for name in ("benchmark", "deterministic", "allow_tf32", "enabled")
    },
    "the environment": (lambda: dict(os.environ), _set_environment),
}


class Watch:
    """`effect` is what a call did, None if it did nothing but compute."""

    def __init__(self) -> None:
        self.effect: str | None = None

    def hear(self, frame: types.FrameType, event: str, called: Any) -> None:
        if self.effect is not None:
            return
        if event == "c_call":
            word = _of_c(called)
            if word is None or not is_users(frame.f_code.co_filename):
                return
            if not _is_told_of_a_log(frame):
                self.effect = f"{word} ({_place(frame)})"
        elif event == "call" and frame.f_code in TELLING:
            caller = frame.f_back
            around = (frame.f_code.co_filename, *WRAPPERS)  # a logger hears of itself
            while caller is not None and caller.f_code.co_filename.startswith(around):
                caller = caller.f_back
            if caller is not None and is_users(caller.f_code.co_filename):
                self.effect = f"{TELLING[frame.f_code]} ({_place(caller)})"


def _is_told_of_a_log(frame: types.FrameType | None) -> bool:
    """Whether a logger called this: who logs is heard itself, and it may be torch."""
    while frame is not None and frame.f_code.co_filename != logging.__file__:
        frame = frame.f_back
    return frame is not None


@contextlib.contextmanager
def watched(module: nn.Module) -> Iterator[Watch]:
    """What a call of the module does meanwhile, besides computing."""
    watch, before = Watch(), _held(module)
    heard, collects = sys.getprofile(), gc.isenabled()
    gc.disable()  # what others do while the collector runs is no effect of this call
    sys.setprofile(watch.hear)
    with undone() as changed:
        try:
            yield watch
        finally:
            sys.setprofile(heard)
            if collects:
                gc.enable()
        watch.effect = watch.effect or changed()
    after = _held(module)
    for name, value in before.items():
        if watch.effect is None and after.get(name) != value:
            watch.effect = f"changes {name}"


@contextlib.contextmanager
def undone() -> Iterator[Callable[[], str | None]]:
    """Afterwards the settings of the process are what they were before the user's code ran.

    Meanwhile it can be asked whether one has changed.
    """
    before = _settings()

    def changed() -> str | None:
        after = _settings()
        return next((f"changes {name}" for name in before if after.get(name) != before[name]), None)

    try:
        yield changed
    finally:
        after = _settings()
        for name, value in before.items():
            if after.get(name) != value:
                SETTINGS[name][1](value)


def _settings() -> dict[str, Any]:
    """Those that torch tells: it refuses to where its older and its newer interface disagree."""
    found = {}
    for name, (read, _) in SETTINGS.items():
        with contextlib.suppress(RuntimeError):
            found[name] = read()
    return found


def _held(module: nn.Module) -> dict[str, Any]:
    """What the names of the user's files and classes stand for, by identity, one level deep."""
    found: dict[str, Any] = {}
    spaces = {**_spaces(module), **{kind.__name__: vars(kind) for kind in _kinds(module)}}
    for place, space in spaces.items():
        for name, value in list(space.items()):
            inside = list(value.values()) if isinstance(value, dict) else value
            parts = [id(x) for x in inside] if isinstance(inside, list | set) else []
            found[f"{name} of {place}"] = (id(value), parts)
    return found


def _kinds(module: nn.Module) -> list[type]:
    """The user's classes among those of the parts."""
    kinds = dict.fromkeys(kind for m in module.modules() for kind in type(m).__mro__)
    files = {kind: getattr(sys.modules.get(kind.__module__), "__file__", None) for kind in kinds}
    return [k for k, file in files.items() if k is not object and (not file or is_users(file))]


def _spaces(module: nn.Module) -> dict[str, dict[str, Any]]:
    """The names of the user's files."""
    functions = [getattr(kind, "forward", None) for kind in _kinds(module)]
    plain = [f for f in functions if isinstance(f, types.FunctionType)]
    return {str(f.__globals__.get("__name__")): f.__globals__ for f in plain}


def _of_c(called: Any) -> str | None:
    """What a function of C does besides computing."""
    name, home = getattr(called, "__name__", ""), getattr(called, "__module__", None)
    if home in MODULES:
        return MODULES[home] if home == "_warnings" else f"{MODULES[home]} by {name}"
    owner = getattr(called, "__self__", None)
    if name in SEEDED and isinstance(owner, torch.Generator):
        return f"calls {name} of a generator"
    if name.startswith("set_") and getattr(owner, "__name__", None) == "torch._C":
        return f"calls torch.{name}"
    return NAMES.get(name) if not isinstance(owner, torch.Tensor) else None


def _place(frame: types.FrameType) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


@functools.cache
def is_users(file: str) -> bool:
    """Whether code was written by neither torch, nor Python, nor us."""
    path = Path(file)
    inside = {*path.parents}
    if TORCH in inside or PACKAGE in inside or file.startswith("<frozen"):
        return False
    packages = {Path(sysconfig.get_path(k)) for k in ("purelib", "platlib")}
    if any(root / name in inside for root in packages for name in LIBRARIES):
        return False
    return bool(packages & inside) or Path(sysconfig.get_path("stdlib")) not in inside
