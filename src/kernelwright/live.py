"""A live module: its ModelNew shares the tensors of the module it was compiled from, and no more.

In: a module and the text emitted for it. Out: an instance of the ModelNew in that text. The class
exists in this process alone, so its instances pickle as the text and their state: whoever loads
them runs the text again (`rebuild`). The text lies in the cache folder, where tracebacks and
inspect find it.
"""

from __future__ import annotations

import functools
import sys
import threading
import types
import weakref
from collections import Counter
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import fx, nn

from kernelwright.cache import keep_live
from kernelwright.errors import BuildError, InputError, InternalError, where_from
from kernelwright.files import check_writable, write_atomically
from kernelwright.lent import why_lent
from kernelwright.problem import Problem
from kernelwright.twins import twin

_LOADED: dict[str, type[nn.Module]] = {}
_SOURCES: dict[type[nn.Module], tuple[str, str]] = {}
_LOCKS: dict[str, threading.Lock] = {}
_GUARD = threading.Lock()


class Elsewhere(Exception):
    """The kernels of this module do not cover a call, and the cause."""

    def __init__(self, module: nn.Module, cause: str) -> None:
        super().__init__(cause)
        self.module, self.cause = module, cause


class Further(Protocol):
    """What takes the calls of a module that its own kernels do not cover (kinds.py)."""

    fallbacks: Counter[str]

    def run(self, module: nn.Module, cause: str, args: tuple[Any, ...], kwargs: Any) -> Any: ...


# By the address of the module, as long as that lives: its own attributes stay the user's.
_FURTHER: dict[int, tuple[weakref.ref[nn.Module], Further | None]] = {}


def lead(module: nn.Module, further: Further | None) -> nn.Module:
    """From here on calls outside of the module's own kernels go there; None: they raise."""
    number = id(module)
    _FURTHER[number] = weakref.ref(module, lambda _: _FURTHER.pop(number, None)), further
    return module


def further_of(module: nn.Module) -> Further | None:
    return _FURTHER[id(module)][1] if id(module) in _FURTHER else None


def instantiate(problem: Problem, source: str) -> nn.Module:
    """Load the emitted text and give a ModelNew the state of the original module."""
    return adopt(load_class(source, problem.name), problem.module)


def adopt(model_class: type[nn.Module], module: nn.Module) -> nn.Module:
    """An instance over the very tensors of another module, with modules of its own around them."""
    new = twin(module, model_class)
    vars(new)["_kernelwright"] = None
    return new


def rebuild(source: str, name: str, further: Further | None = None) -> nn.Module:
    """What pickle and deepcopy call: an instance without state, of the ModelNew in this text."""
    model_class = load_class(source, name)
    new = model_class.__new__(model_class)
    return lead(new, further) if further is not None else new


def emitted_source(module: object) -> str | None:
    """The text that a live module was made from; None for any other object."""
    found = _SOURCES.get(type(module))  # type: ignore[arg-type]
    return found[0] if found else None


def emitted_file(module: nn.Module) -> Path:
    """Where the text of a live module lies."""
    source, name = _SOURCES[type(module)]
    return keep_live(name, source)


def save(module: nn.Module, path: str | Path) -> Path:
    """Write the emitted file of an optimized live module."""
    # torch gives each GraphModule a class of its own, those of a ModelNew too.
    kind = type(module).__mro__[1 if isinstance(module, fx.GraphModule) else 0]
    source = _SOURCES[kind][0] if kind in _SOURCES else None
    if source is None:
        raise InputError(
            f"This {type(module).__name__} was not made by kernelwright.optimize, "
            "so there is no emitted file to save."
        )
    if (why := why_lent(source)) is not None:
        raise InputError(f"The emitted file cannot stand alone. {why}")
    check_writable(Path(path))
    write_atomically(Path(path), source)
    return Path(path)


def load_class(source: str, name: str) -> type[nn.Module]:
    """ModelNew of an emitted text, loaded once in each process."""
    with _GUARD:
        lock = _LOCKS.setdefault(source, threading.Lock())
    with lock:  # of this text alone: different ones are built side by side
        if source not in _LOADED:
            path = keep_live(name, source)
            model_class: type[nn.Module] = _run(source, path).ModelNew
            _SOURCES[model_class] = source, name
            _attach(model_class)
            _LOADED[source] = model_class
        return _LOADED[source]


def _run(source: str, path: Path) -> types.ModuleType:
    """Run the text as a module of its own, known by the name of its file."""
    module = types.ModuleType(f"kernelwright_live_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    try:
        exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)
    except Exception as error:
        del sys.modules[module.__name__]
        raise _failure(error, path, source) from error
    for value in vars(module).values():
        kernels = type(value).__module__ == module.__name__ and hasattr(value, "watchers")
        if kernels and getattr(value, "refused", None):
            raise BuildError(f"The kernels in {path} could not be built: {value.refused}.")
    for kind in vars(module).values():
        if isinstance(kind, type) and hasattr(kind, "fall_back") and hasattr(kind, "is_current"):
            _divert(kind)
    return module


def _divert(memo_class: Any) -> None:
    """Calls outside of the kernels raise that, where somebody takes them."""
    memo_class.count = memo_class.fall_back

    def fall_back(self: Any, cause: str) -> None:
        if id(self.module) in _FURTHER:
            raise Elsewhere(self.module, cause)
        self.count(cause)

    memo_class.fall_back = fall_back


def _failure(error: Exception, path: Path, source: str) -> Exception:
    """Whose fault it is that an emitted text does not run."""
    from kernelwright.failures import build_failure

    if (reason := build_failure(error, path, source)) is not None:
        return BuildError(f"The kernels in {path} could not be built: {reason}")
    if isinstance(error, ImportError):
        return InputError(
            f"The emitted text imports the model's own class, which cannot be found here: {error}. "
            "Make the module that defines it importable."
        )
    return InternalError(
        f"The emitted text raised {type(error).__name__} at {where_from(error)}: {error}. "
        f"This is a bug in kernelwright; please report it with {path}."
    )


def _attach(model_class: type[nn.Module]) -> None:
    """Pickling by text, and `save`, unless the user's own class brings them."""
    ours: Any = model_class
    if model_class.__reduce_ex__ is object.__reduce_ex__ and (
        model_class.__reduce__ is object.__reduce__
    ):
        ours.__reduce_ex__ = _reduce
    if not hasattr(model_class, "save"):
        ours.save = _Save()
    ours.forward = _leading(ours.forward)
    if ours.__repr__ is nn.Module.__repr__:
        ours.__repr__ = shown


def shown(module: nn.Module) -> str:
    """As any module shows itself, with its kinds behind it."""
    kinds = str(further_of(module) or "")
    return nn.Module.__repr__(module) + f"\nkinds:\n{kinds}" * bool(kinds)


def _leading(own: Any) -> Any:
    """A forward that hands on what its kernels do not cover, with the text's names as globals."""
    asked, elsewhere, is_compiling = further_of, Elsewhere, torch.compiler.is_compiling

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if is_compiling() or (further := asked(self)) is None:
            return own(self, *args, **kwargs)
        try:
            return own(self, *args, **kwargs)
        except elsewhere as found:
            if found.module is not self:
                raise
            cause = found.cause
        return further.run(self, cause, args, kwargs)

    code, closure = forward.__code__, forward.__closure__
    made = types.FunctionType(code, own.__globals__, "forward", None, closure)
    return functools.wraps(own)(made)


def _reduce(module: nn.Module, protocol: int) -> Any:
    if type(module) not in _SOURCES:  # a subclass, which pickle finds by its own name
        return object.__reduce_ex__(module, protocol)
    text = (*_SOURCES[type(module)], further_of(module))
    return rebuild, text, module.__getstate__()  # type: ignore[no-untyped-call]


class _Save:
    """The method `save`, which gives way to a parameter, buffer or submodule of that name."""

    def __get__(self, module: nn.Module | None, owner: type[nn.Module]) -> Any:
        if module is None:
            return save
        for held in (module._parameters, module._buffers, module._modules):
            if "save" in held:
                return held["save"]
        return lambda path: save(module, path)
