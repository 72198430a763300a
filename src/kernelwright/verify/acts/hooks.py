"""Hooks on a module: what they change, and how often they are called.

In: a module, inputs, and where which kind of hook goes. Out: the result with the hook, after it was
removed, and the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from kernelwright.verify.acts.here import Here
from kernelwright.verify.inputs import Inputs, Named, copied, forward, map_floating

Note = Callable[[], None]
Register = Callable[[nn.Module, Note], RemovableHandle]


def hooked(
    module: nn.Module, inputs: Inputs, here: Here, path: str, kind: str, counted: bool = True
) -> Named:
    """A call with a hook of a kind on one module, and one without."""
    calls: list[None] = []
    with _registered(KINDS[kind](module.get_submodule(path), lambda: calls.append(None))):
        changed = forward(module, copied(inputs))
    after = forward(module, inputs)
    results = {"the result": changed, "the result after it was removed": after}
    return Named({"the number of calls": len(calls), **results} if counted else results)


def observed(
    module: nn.Module,
    inputs: Inputs,
    here: Here,
    kind: str,
    paths: list[str],
    counted: bool = True,
) -> Named:
    """A global hook that writes down which of some modules were called, and changes nothing."""
    names = {id(child): path for path, child in module.named_modules() if path in paths}
    called: list[str] = []

    def note(child: nn.Module, *values: Any) -> None:
        if id(child) in names:
            called.append(names[id(child)] or "the model")

    with _registered(GLOBAL[kind](note)):
        result = forward(module, copied(inputs))
    called = called if counted else list(dict.fromkeys(called))
    return Named({"the order of calls": ", ".join(called), "the result": result})


@contextmanager
def _registered(handle: RemovableHandle) -> Iterator[None]:
    try:
        yield
    finally:
        handle.remove()


def _after(module: nn.Module, note: Note) -> RemovableHandle:
    def double(module: nn.Module, args: Any, outputs: Any) -> Any:
        note()
        return map_floating(lambda x: x * 2, outputs)

    return module.register_forward_hook(double)


def _before(module: nn.Module, note: Note) -> RemovableHandle:
    def halve(module: nn.Module, args: Any) -> Any:
        note()
        return map_floating(lambda x: x * 0.5, args)

    return module.register_forward_pre_hook(halve)


def _before_with_keywords(module: nn.Module, note: Note) -> RemovableHandle:
    def halve(module: nn.Module, args: Any, kwargs: Any) -> Any:
        note()
        return map_floating(lambda x: x * 0.5, (args, kwargs))

    return module.register_forward_pre_hook(halve, with_kwargs=True)


KINDS: dict[str, Register] = {
    "a forward hook that doubles": _after,
    "a pre-hook that halves": _before,
    "a pre-hook with keywords that halves": _before_with_keywords,
}

GLOBAL: dict[str, Callable[..., RemovableHandle]] = {
    "a global forward hook": register_module_forward_hook,
    "a global pre-hook": register_module_forward_pre_hook,
}
